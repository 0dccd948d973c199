"""An engine as several hosts use it at the same time: an object is never read in part, and of
several hosts that create an object one is told so.
"""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from npugx_cache import remote_address
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
