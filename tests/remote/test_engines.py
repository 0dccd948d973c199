"""An engine as several hosts use it at the same time: an object is never read in part, and of
several hosts that create an object one is told so.
"""

from __future__ import annotations

import multiprocessing
import socket
import threading
import types
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from npugx_cache.config import remote_address
from npugx_cache.store.remote import lease as leases
from npugx_cache.store.remote.engine import Engine, Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

    from faults import Engines

pytestmark = pytest.mark.thorough
HOSTS = 4
TIMES = 100
DATA = bytes(range(256)) * 16
PATH = "v1/cas/written-again"

host: dict[str, Any] = {}
"""In the process of a host: its connection to the tier, and where it waits for the others."""


def start(address: str, together: Barrier) -> None:
    engine = Engine(remote_address.parse(address))
    reason = engine.obstacle()
    assert reason is None, reason
    host.update(engine=engine, together=together)


def create(_: int) -> list[bool]:
    created = []
    for number in range(TIMES):
        host["together"].wait()
        created.append(host["engine"].create(f"v1/locks/{number}", b"a token"))
    return created


def write_or_read(number: int) -> int:
    """How often a host has read something else than what all others write again and again."""
    host["engine"].write(PATH, DATA)
    host["together"].wait()
    if number > 0:
        for _ in range(TIMES):
            host["engine"].write(PATH, DATA)
        return 0
    return sum(host["engine"].read(PATH, 2 * len(DATA)) != DATA for _ in range(5 * TIMES))


@pytest.mark.parametrize("engine", ["fs", "s3"])
@pytest.mark.parametrize("work", [create, write_or_read])
def test_hosts_at_the_same_time(
    engines: Engines, engine: str, work: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in engines.common.items():
        monkeypatch.setenv(name, value)
    address = engines.address(engine, 0 if engine == "fs" else engines.port(engine), "engines")
    context = multiprocessing.get_context("spawn")
    starting = (address, context.Barrier(HOSTS, timeout=120))
    with ProcessPoolExecutor(HOSTS, context, start, starting) as pool:
        found = list(pool.map(work, range(HOSTS)))
    if work is write_or_read:
        assert found == [0] * HOSTS
    else:
        assert [sum(each) for each in zip(*found, strict=True)] == [1] * TIMES


def engine_of(engines: Engines, name: str, monkeypatch: pytest.MonkeyPatch) -> Engine:
    for variable, value in engines.common.items():
        monkeypatch.setenv(variable, value)
    port = 0 if name == "fs" else engines.port(name)
    engine = Engine(remote_address.parse(engines.address(name, port, "limits")))
    reason = engine.obstacle()
    assert reason is None, reason
    return engine


def sent_by_redis(port: int) -> int:
    """How many bytes the server has sent to all its clients."""
    with socket.create_connection(("127.0.0.1", port)) as client, client.makefile("rb") as lines:
        client.sendall(b"INFO stats\r\n")
        found = next(line for line in lines if line.startswith(b"total_net_output_bytes:"))
    return int(found.partition(b":")[2])


def test_no_more_of_a_value_leaves_redis_than_is_read(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, port = engine_of(engines, "redis", monkeypatch), engines.port("redis")
    engine.write("v1/ac/index", DATA * 4096)
    before = sent_by_redis(port)
    assert engine.read("v1/ac/index", 1000) == DATA[:1000]
    assert engine.size("v1/ac/index") == 4096 * len(DATA)
    assert sent_by_redis(port) - before < 20_000
    engine.write("v1/ac/index", b"")
    assert engine.read("v1/ac/index", 1000) == b""
    engine.write("v1/ac/index", DATA)
    assert engine.read("v1/ac/index", 1 << 20) == DATA


@pytest.mark.parametrize("name", ["fs", "redis", "s3"])
def test_several_objects_are_read_up_to_a_limit_for_all(
    engines: Engines, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, many, size = engine_of(engines, name, monkeypatch), 8, 256 * len(DATA)
    for number in range(many):
        engine.write(f"v1/ac/{number}", DATA * 256)
    wanted = [(f"v1/ac/{number}", 2 * size) for number in range(many)]
    assert engine.read_all(wanted, many * 2 * size) == [DATA * 256] * many
    found = engine.read_all(wanted, 3 * size)
    read = [each for each in found if not isinstance(each, Fault)]
    assert read == [DATA * 256] * len(read)
    assert len(read) <= 3
    assert all(each.is_too_much for each in found if isinstance(each, Fault))
    absent = engine.read_all([("v1/ac/none", size)], size)
    assert isinstance(absent[0], Fault)
    assert absent[0].is_absent


class Shrinking(Engine):
    """Its value gets shorter after its length was asked for."""

    async def _stat(self, path: str) -> int:
        size = await super()._stat(path)
        if size == len(DATA):
            await self._write(path, b"short")
        return size


def test_a_value_that_gets_shorter_while_it_is_read_is_read(engines: Engines) -> None:
    engine = Shrinking(remote_address.parse(engines.address("redis", engines.port("redis"))))
    assert engine.obstacle() is None
    engine.write("v1/ac/index", DATA)
    assert engine.read("v1/ac/index", len(DATA)) == b"short"


class Paused(Engine):
    """Does something just before each write."""

    before_write: Callable[[], object]

    def write(self, path: str, data: bytes) -> None:
        self.before_write()
        super().write(path, data)


class Noted:
    """A lock that tells, by an event, that somebody has to wait for it."""

    def __init__(self, waits: threading.Event) -> None:
        self._lock, self._waits = threading.Lock(), waits

    def acquire(self, timeout: float = -1) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        self._waits.set()
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_a_lease_that_is_released_while_it_is_renewed_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_BEAT", 0.0)
    engine = Paused(remote_address.parse(f"fs://{tmp_path}"))
    assert engine.obstacle() is None
    lease, waits_or_ended = leases.Lease(engine, "v1/locks/name"), threading.Event()
    monkeypatch.setattr(lease, "_beating", Noted(waits_or_ended))

    def release() -> None:
        lease.release()
        waits_or_ended.set()

    writer = threading.Thread(target=release)

    def give_up() -> None:
        if not waits_or_ended.is_set():
            assert lease.give_up()
            writer.start()
            waits_or_ended.wait()

    engine.before_write = give_up
    assert lease.take()
    for thread in threading.enumerate():
        if thread.name == "npugx-cache-lease":
            thread.join()
    writer.join()
    with pytest.raises(Fault) as absent:
        engine.read("v1/locks/name", 100)
    assert absent.value.is_absent


@pytest.mark.parametrize(
    "junk",
    [b"", b"7", bytes(range(256)), b"x" * (5 << 20)],
    ids=["empty", "a number", "any", "long"],
)
def test_a_lease_that_a_stranger_wrote_is_that_of_a_host_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, junk: bytes
) -> None:
    now = [0.0]
    monkeypatch.setattr(leases, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    engine = Engine(remote_address.parse(f"fs://{tmp_path}"))
    assert engine.obstacle() is None
    engine.write("v1/locks/name", junk)
    lease = leases.Lease(engine, "v1/locks/name")
    assert not lease.take()
    assert not lease.is_free()
    now[0] += leases._GONE_AFTER - 1
    assert not lease.is_free()
    engine.write("v1/locks/name", b"changed")  # somebody is there
    now[0] += 2
    assert not lease.is_free()
    now[0] += leases._GONE_AFTER
    assert lease.is_free()
    assert lease.take()
    lease.give_up()
    lease.release()
