"""What happens to a worker when its remote tier fails: each engine, each fault.

`PYTHONPATH=. python tests/remote/faults.py` prints the table of `docs/deployment.md`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import servers
from proxy import Proxy

from tests.conftest import Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = Path(__file__).parent / "worker.py"
FUNCTIONS = 5
PATIENT = {"REMOTE_BUDGET": "30"}


class Case(NamedTuple):
    """One cell of the table: `answer` is what most calls come to."""

    engine: str
    fault: str
    answer: str
    reason: str = ""

    @property
    def name(self) -> str:
        return f"{self.engine}-{self.fault.replace(' ', '-')}"


_LATE = "did not answer in 250 ms"
CASES = (
    Case("s3", "none", "hit"),
    Case("s3", "down at the start", "miss", "the remote tier"),
    Case("s3", "down in the middle", "miss", "the remote tier"),
    Case("s3", "slow", "miss", _LATE),
    Case("s3", "silent", "miss", _LATE),
    Case("s3", "dripping", "miss", _LATE),
    Case("s3", "cut off", "miss", "the remote tier"),
    Case("s3", "lying", "miss", "the remote tier"),
    Case("s3", "wrong objects", "miss", "digest mismatch"),
    Case("s3", "permission denied", "miss", "PermissionDenied"),
    Case("s3", "bucket missing", "miss", "NoSuchBucket"),
    Case("s3", "clock a day ahead", "hit"),
    Case("s3", "clock refused", "miss", "RequestTimeTooSkewed"),
    Case("redis", "none", "hit"),
    Case("redis", "down at the start", "miss", "the remote tier"),
    Case("redis", "down in the middle", "miss", "the remote tier"),
    Case("redis", "slow", "miss", _LATE),
    Case("redis", "silent", "miss", _LATE),
    Case("redis", "dripping", "miss", _LATE),
    Case("redis", "cut off", "miss", "the remote tier"),
    Case("redis", "lying", "miss", "the remote tier"),
    Case("redis", "wrong objects", "miss", "digest mismatch"),
    Case("redis", "permission denied", "miss", "the remote tier"),
    Case("redis", "database missing", "miss", "the remote tier"),
    Case("redis", "clock a day ahead", "hit"),
    Case("fs", "none", "hit"),
    Case("fs", "wrong objects", "miss", "digest mismatch"),
    Case("fs", "clock a day ahead", "hit"),
)


class Engines:
    """The servers, each behind a proxy, and the tier of each filled by a worker of another host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = contextlib.ExitStack()
        self.ports: dict[str, int] = {}
        key = folder / "key"
        from npugx_cache.store.format.signing import new_secret

        key.write_text(new_secret())
        key.chmod(0o600)
        self.common = {"NPUGX_CACHE_KEY_FILE": str(key), **servers.AWS}
        self._filled: set[str] = set()

    def close(self) -> None:
        self._stack.close()

    def port(self, engine: str) -> int:
        if engine not in self.ports:
            start = {"s3": servers.s3, "redis": servers.redis}[engine]
            self.ports[engine] = self._stack.enter_context(start(self.folder))
        return self.ports[engine]

    def address(self, engine: str, port: int = 0, place: str = "tier") -> str:
        if engine == "fs":
            return f"fs://{self.folder}/{place}"
        if engine == "redis":
            return f"redis://127.0.0.1:{port}/0/{place}"
        return f"s3://{servers.BUCKET}/{place}?endpoint=http://127.0.0.1:{port}"

    def host(self, name: str) -> Surroundings:
        """A host with folders of its own."""
        made = Surroundings(self.folder / name)
        made.folder.mkdir()
        self._stack.callback(made.close)
        return made

    def fill(self, engine: str, place: str = "tier") -> None:
        """Let a worker of another host fill the tier."""
        if f"{engine} {place}" in self._filled:
            return
        self._filled.add(f"{engine} {place}")
        port = 0 if engine == "fs" else self.port(engine)
        remote = {"NPUGX_CACHE_REMOTE": self.address(engine, port, place)}
        host = self.host(f"filler-{engine}-{place}")
        found = host.run(WORKER, FUNCTIONS, **self.common, **remote, **PATIENT)
        assert [call["misses"] for call in found["calls"]] == [1] * FUNCTIONS, found

    @contextlib.contextmanager
    def failing(self, case: Case) -> Iterator[tuple[dict[str, str], Proxy | None]]:
        """The environment of a worker that meets the fault, and the proxy that makes the fault."""
        engine, fault = case.engine, case.fault
        common = dict(self.common)
        place = "wrong" if fault == "wrong objects" else "tier"
        self.fill(engine, place)
        with contextlib.ExitStack() as stack:
            proxy = None
            if engine != "fs":
                port = self.port(engine)
                if fault == "permission denied" and engine == "s3":
                    denying = {"INITIAL_NO_AUTH_ACTION_COUNT": "1"}
                    port = stack.enter_context(servers.s3(self.folder, **denying))
                elif fault == "permission denied":
                    port = stack.enter_context(servers.redis(self.folder, "--requirepass", "x"))
                elif fault == "clock refused":
                    port = stack.enter_context(servers.skewed(self.folder))
                proxy = Proxy(port)
                stack.callback(proxy.close)
                at_once = {"down at the start": "down", "cut off": "cut"}
                name = at_once.get(fault, fault)
                if name in {"down", "silent", "slow", "dripping", "cut", "lying"}:
                    proxy.set(name)  # type: ignore[arg-type]
                address = self.address(engine, proxy.port, place)
                if fault == "bucket missing":
                    address = address.replace(servers.BUCKET, "no-such-bucket")
                elif fault == "database missing":
                    address = address.replace("/0/", "/9999/")
            else:
                address = self.address(engine, place=place)
            if fault == "wrong objects":
                self._spoil(engine, place)
            if fault == "clock a day ahead":
                common |= ahead(self.folder)
            yield {**common, "NPUGX_CACHE_REMOTE": address}, proxy

    def _spoil(self, engine: str, place: str) -> None:
        """Change a byte of each object of the tier."""
        import opendal

        given = {
            "fs": {"root": f"{self.folder}/{place}"},
            "redis": {"endpoint": f"tcp://127.0.0.1:{self.ports.get('redis')}", "db": "0"},
            "s3": {
                "bucket": servers.BUCKET,
                "endpoint": f"http://127.0.0.1:{self.ports.get('s3')}",
                "root": f"/{place}",
                "region": "us-east-1",
                "access_key_id": "testing",
                "secret_access_key": "testing",
            },
        }[engine]
        operator = opendal.Operator(engine, **given)
        if engine == "redis":  # OpenDAL can't list it
            port = str(self.ports["redis"])
            listed = ["redis-cli", "-p", port, "--scan", "--pattern", f"*{place}/v1/*"]
            out = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
            paths = [path for path in out.split() if not path.endswith("/index")]
        else:
            paths = [e.path for e in operator.list("v1/", recursive=True) if e.path[-1] != "/"]
        assert paths
        for path in paths:
            data = operator.read(path)
            operator.write(path, data[:-1] + bytes([data[-1] ^ 1]))


def ahead(folder: Path) -> dict[str, str]:
    """The variables under which a process believes that it is tomorrow."""
    library = folder / "clock.so"
    if not library.exists():
        source = Path(__file__).parent / "clock.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library), "SKEW": "86400"}


class Outcome(NamedTuple):
    calls: list[dict[str, Any]]
    lines: list[str]
    seconds: float

    @property
    def answers(self) -> list[str]:
        return ["hit" if call["hits"] else "miss" for call in self.calls]


def meet(engines: Engines, case: Case, **changes: str) -> Outcome:
    """Let a worker with an empty folder meet a fault."""
    host = engines.host(case.name)
    with engines.failing(case) as (met, proxy):
        variables = {**met, **changes}
        began = time.monotonic()
        arguments = [WORKER, FUNCTIONS]
        if case.fault == "down in the middle":
            assert proxy is not None
            worker = host.start(*arguments, host.folder, **variables)
            while not (host.folder / "paused").exists():
                assert worker.process.poll() is None, worker.process.communicate()
                time.sleep(0.02)
            proxy.set("down")
            (host.folder / "go").touch()
        else:
            worker = host.start(*arguments, **variables)
        found = worker.result()
        return Outcome(found["calls"], found["lines"], time.monotonic() - began)


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    engines = Engines(folder)
    wanted = sys.argv[1:]
    print("| engine | fault | five calls | the reason that is told | longest wait | all waits |")
    print("|---|---|---|---|---|---|")
    try:
        for case in CASES:
            if wanted and case.engine not in wanted and case.name not in wanted:
                continue
            outcome = meet(engines, case)
            calls = outcome.calls
            assert all(call["equal"] for call in calls), case
            waits = [call["waited_ms"] for call in calls]
            hits = outcome.answers.count("hit")
            came_to = " and ".join(
                f"{n} {word}" for n, word in ((hits, "hits"), (FUNCTIONS - hits, "misses")) if n
            )
            reasons = [
                reason
                for call in calls
                for reason in call["told"]
                if "remote tier" in reason and "not asked for" not in reason
            ]
            reason = reasons[0].replace("|", "/")[:110] if reasons else ""
            row = (case.engine, case.fault, came_to, reason, f"{max(waits):.0f} ms")
            print(f"| {' | '.join(row)} | {sum(waits):.0f} ms |", flush=True)
    finally:
        engines.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
