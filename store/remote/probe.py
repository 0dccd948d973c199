"""Tests whether a remote tier can be used, by writing, reading and removing one object."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from npugx_cache import remote_address
from npugx_cache.store.io import syscalls
from npugx_cache.store.remote.engine import Engine, Fault
from npugx_cache.store.remote.tier import BUDGET
from npugx_cache.store.tools.doctor import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npugx_cache.config import Settings


def examine_remote(settings: Settings) -> Iterator[Finding]:
    """Test the remote tier of the settings, if there is one."""
    if settings.remote is None:
        return
    if settings.trust != "signed":
        detail = "not used without a key: set NPUGX_CACHE_KEY_FILE"
        yield Finding(name="remote tier", verdict="warning", detail=detail)
        return
    engine = Engine(remote_address.parse(settings.remote))
    name = syscalls.random_name()
    path, data = f"v1/doctor/{name}", name.encode() * 32
    reason = engine.obstacle()
    took = 0.0
    if reason is None:
        try:
            engine.write(path, data)
            started = time.perf_counter()
            read = engine.read(path, 2 * len(data))
            took = time.perf_counter() - started
            reason = None if read == data else "other bytes were read than were written"
            engine.delete(path)
        except Fault as fault:
            reason = str(fault)
    engine.stop()
    if reason is not None:
        detail = f"{reason}; workers go on without the tier"
        yield Finding(name="remote tier", verdict="warning", detail=detail)
        return
    once = "hosts compile once" if engine.creates else "hosts that start together repeat work"
    detail = f"{settings.remote}: read in {took * 1e3:.1f} ms; {once}"
    slow = took > BUDGET / 4  # a lookup makes about four requests
    yield Finding(name="remote tier", verdict="warning" if slow else "ok", detail=detail)
