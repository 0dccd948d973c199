"""Hosts that share no folder: one compiles, the others fetch, and each goes on alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import faults
import pytest
import servers
from proxy import Proxy

if TYPE_CHECKING:
    from pathlib import Path

    from faults import Engines
    from networks import Network

    from tests.conftest import Surroundings

pytestmark = pytest.mark.thorough
FUNCTIONS = 3


def compiles(found: dict[str, Any]) -> int:
    assert all(call["equal"] for call in found["calls"])
    return sum(call["misses"] for call in found["calls"])


@pytest.mark.parametrize("engine", ["s3", "fs"])
def test_hosts_that_start_together_compile_once(engines: Engines, engine: str) -> None:
    port = 0 if engine == "fs" else engines.port(engine)
    remote = {"NPUGX_CACHE_REMOTE": engines.address(engine, port, "together")}
    hosts = [engines.host(f"{engine}-together-{number}") for number in range(3)]
    workers = [
        host.start(faults.WORKER, FUNCTIONS, **engines.common, **remote, **faults.PATIENT)
        for host in hosts
    ]
    found = [worker.result() for worker in workers]
    assert sum(map(compiles, found)) == FUNCTIONS, [each["calls"] for each in found]


def test_a_host_that_is_killed_in_its_compile_keeps_nobody_waiting(engines: Engines) -> None:
    remote = {"NPUGX_CACHE_REMOTE": engines.address("fs", place="killed")}
    first, second = engines.host("killed-first"), engines.host("killed-second")
    lock = engines.folder / "killed/v1/locks"
    worker = first.start(faults.WORKER, 1, **engines.common, **remote, **faults.PATIENT)
    while not any(lock.glob("*.lock")):
        assert worker.process.poll() is None, worker.process.communicate()
        time.sleep(0.005)
    worker.process.kill()
    worker.process.communicate()
    assert compiles(second.run(faults.WORKER, 1, **engines.common, **remote)) == 1


@pytest.mark.parametrize("engine", ["s3", "redis"])
@pytest.mark.parametrize("share", [0.6, 0.9])
def test_a_host_that_is_killed_while_it_sends_leaves_nothing_or_a_whole_entry(
    engines: Engines, engine: str, share: float
) -> None:
    """Killed at a byte of a request: blobs are sent first, then the entry that names them."""
    proxy = Proxy(engines.port(engine))
    name = f"{engine}-torn-{share}"
    common = {**engines.common, **faults.PATIENT}
    try:
        # How much an undisturbed host sends, to a place of its own.
        whole = {"NPUGX_CACHE_REMOTE": engines.address(engine, proxy.port, f"{name}-whole")}
        assert compiles(engines.host(f"{name}-whole").run(faults.WORKER, 1, **common, **whole)) == 1
        torn = {"NPUGX_CACHE_REMOTE": engines.address(engine, proxy.port, name)}
        host = engines.host(f"{name}-first")
        proxy.at(int(proxy.sent * share), lambda: worker.process.kill())
        worker = host.start(faults.WORKER, 1, **common, **torn)
        worker.process.communicate()
        assert worker.process.returncode == -signal.SIGKILL
    finally:
        proxy.close()
    remote = {"NPUGX_CACHE_REMOTE": engines.address(engine, engines.port(engine), name)}
    second = engines.host(f"{name}-second").run(faults.WORKER, 1, **common, **remote)
    assert compiles(second) <= 1
    assert not any("of the remote tier" in told for told in second["calls"][0]["told"]), second
    third = engines.host(f"{name}-third").run(faults.WORKER, 1, **common, **remote)
    assert compiles(third) == 0, third


@pytest.mark.parametrize("engine", ["s3", "redis"])
def test_the_tier_goes_away_and_comes_back(engines: Engines, engine: str) -> None:
    proxy = Proxy(engines.port(engine))
    remote = {"NPUGX_CACHE_REMOTE": engines.address(engine, proxy.port, "away")}

    def run(host: Surroundings, number: int) -> dict[str, Any]:
        patience = {} if proxy.fault == "down" else faults.PATIENT
        common = {**engines.common, **remote, **patience}
        found: dict[str, Any] = host.run(faults.WORKER, number, **common)
        return found

    try:
        one, two = engines.host(f"{engine}-away-one"), engines.host(f"{engine}-away-two")
        assert compiles(run(one, 1)) == 1
        assert compiles(run(two, 1)) == 0  # from the tier
        proxy.set("down")
        assert compiles(run(two, 1)) == 0  # the folder of the host was filled
        assert compiles(run(one, 2)) == 1  # alone, and what it compiles stays with it
        assert compiles(run(one, 2)) == 0
        proxy.set("none")
        assert compiles(run(two, 2)) == 1
        three = engines.host(f"{engine}-away-three")
        assert compiles(run(three, 2)) == 0  # both are at the tier, the second one from `two`
    finally:
        proxy.close()


def test_what_could_not_be_sent_is_sent_when_the_tier_is_back(engines: Engines) -> None:
    proxy = Proxy(engines.port("s3"))
    remote = {"NPUGX_CACHE_REMOTE": engines.address("s3", proxy.port, "later")}
    proxy.set("down")
    host = engines.host("later")
    try:
        worker = host.start(faults.WORKER, 3, host.folder, **engines.common, **remote)
        while not (host.folder / "paused").exists():
            assert worker.process.poll() is None, worker.process.communicate()
            time.sleep(0.02)
        proxy.set("none")
        (host.folder / "go").touch()
        assert compiles(worker.result()) == 3
        patient = {**engines.common, **remote, **faults.PATIENT}
        other = engines.host("later-other").run(faults.WORKER, 3, **patient)
        assert compiles(other) == 0, other
    finally:
        proxy.close()


def test_a_worker_that_was_forked_goes_on(engines: Engines) -> None:
    engines.fill("redis")
    remote = {"NPUGX_CACHE_REMOTE": engines.address("redis", engines.port("redis"))}
    host = engines.host("forked")
    program = f"""
import json, multiprocessing, runpy, sys
def work():
    sys.argv = ["worker", "2"]
    runpy.run_path({str(faults.WORKER)!r}, run_name="__main__")
context = multiprocessing.get_context("fork")
child = context.Process(target=work)  # of a process that has not asked the tier
child.start()
child.join(120)
assert child.exitcode == 0
print(json.dumps({{}}))
"""
    path = host.folder / "forking.py"
    path.write_text(program)
    started = host.start(path, **engines.common, **remote, **faults.PATIENT)
    out, err = started.process.communicate(timeout=300)
    assert started.process.returncode == 0, err
    assert '"hits": 1' in out.splitlines()[0], out


def test_a_miss_says_everywhere_what_kept_the_tier_from_helping(engines: Engines) -> None:
    port = engines.port("s3")
    remote = engines.address("s3", port).replace(servers.BUCKET, "no-such-bucket")
    host = engines.host("told")
    program = host.folder / "program.py"
    program.write_text("""
import json, torch, npugx_cache
@npugx_cache.cache_compile
def f(x):
    return x + 1
try:
    f(torch.ones(2))
except npugx_cache.CacheMiss as error:
    print(json.dumps([str(error), [str(each) for each in f.explain()]]))
""")
    variables = {**engines.common, **faults.PATIENT, "NPUGX_CACHE_REMOTE": remote}
    raised, explained = host.run(program, **variables, NPUGX_CACHE_ON_MISS="raise")
    assert "the remote tier" in raised
    assert any("the remote tier" in each for each in explained), explained
    assert "the remote tier" in host.command("misses", "--format", "json").stdout


@pytest.mark.parametrize("engine", ["s3", "redis"])
def test_hosts_with_networks_of_their_own(
    engines: Engines, networks: list[Network], engine: str, tmp_path: Path
) -> None:
    """Two network namespaces, which see the server and nothing of each other."""
    start = {"s3": servers.s3, "redis": servers.redis}[engine]
    options = () if engine == "s3" else ("--protected-mode", "no")
    with start(tmp_path, *options, host="0.0.0.0") as port:
        hosts = [engines.host(f"{engine}-network-{number}") for number in (1, 2)]

        def run(index: int, number: int, patience: dict[str, str]) -> dict[str, Any]:
            host, network = hosts[index], networks[index]
            address = engines.address(engine, port).replace("127.0.0.1", network.server)
            common = {**engines.common, **patience, "NPUGX_CACHE_REMOTE": address}
            command = [*network.inside, sys.executable, str(faults.WORKER), str(number)]
            done = subprocess.run(
                command,
                env=host.environment(**common),
                capture_output=True,
                text=True,
                timeout=300,
                check=True,
            )
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return found

        first, second = run(0, 2, faults.PATIENT), run(1, 2, faults.PATIENT)
        assert (compiles(first), compiles(second)) == (2, 0)  # each graph once, on all hosts
        assert [call["hits"] for call in second["calls"]] == [1, 1]
        for network in networks:
            network.cut()
        assert compiles(run(1, 2, {})) == 0  # its own folder was filled
        assert [compiles(run(0, 3, {})), compiles(run(1, 3, {}))] == [1, 1]  # each goes on alone
        for network in networks:
            network.mend()
        assert compiles(run(0, 4, faults.PATIENT)) == 1
        assert compiles(run(1, 4, faults.PATIENT)) == 0  # the tier serves again
