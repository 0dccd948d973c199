"""Tests whether a remote tier can be used, by writing, reading and removing one object."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from npugx_cache.config import remote_address
from npugx_cache.store.io import syscalls
from npugx_cache.store.remote.engine import Engine, Fault
from npugx_cache.store.remote.tier import BUDGET
from npugx_cache.store.tools.doctor import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npugx_cache.config import Settings

_PATIENCE = 10 * BUDGET  # so that a tier that is slow is told from one that says nothing


def examine_remote(settings: Settings) -> Iterator[Finding]:
    """Test the remote tier of the settings, if there is one."""
    if settings.remote is None:
        return
    if settings.trust != "signed":
        detail = "not used without a key: set NPUGX_CACHE_KEY_FILE"
        yield Finding(name="remote tier", verdict="warning", detail=detail)
        return
    address = remote_address.parse(settings.remote)
    engine = Engine(address)
    reason = engine.obstacle()
    answers: list[float | str] = [] if reason is None else [reason]
    if reason is None:
        asking = threading.Thread(target=lambda: answers.append(_time_read(engine)), daemon=True)
        asking.start()
        asking.join(_PATIENCE)
    answer = answers[0] if answers else f"no answer in {_PATIENCE:.1f} s"
    once = "hosts that start together repeat work"
    if isinstance(answer, float) and engine.creates:
        once = "hosts compile once"
    engine.stop()
    if isinstance(answer, str):
        detail = f"{address.text}: {answer}; workers go on without the tier"
        yield Finding(name="remote tier", verdict="warning", detail=detail)
        return
    detail = f"{address.text}: read in {answer * 1e3:.1f} ms; {once}"
    slow = answer > BUDGET / 4  # a lookup makes about four requests
    if slow:
        detail += f"; lookups wait {BUDGET * 1e3:.0f} ms, so many of them go on without the tier"
    yield Finding(name="remote tier", verdict="warning" if slow else "ok", detail=detail)


def _time_read(engine: Engine) -> float | str:
    """How many seconds a read takes, or why the tier can't be used."""
    name = syscalls.random_name()
    path, data = f"v1/doctor/{name}", name.encode() * 32
    try:
        engine.write(path, data)
        started = time.perf_counter()
        read = engine.read(path, 2 * len(data))
        took = time.perf_counter() - started
        engine.delete(path)
    except Fault as fault:
        return str(fault)
    return took if read == data else "other bytes were read than were written"
