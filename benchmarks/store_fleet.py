"""Many processes on one store: import, single flight, throughput. Peers in the same run."""

from __future__ import annotations

import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measuring import environment
from store_floors import Ours
from store_peers import makers

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[1]
# All that a hit loads, and not only the package's front door.
HIT = "npugx_cache.store.folder_store, npugx_cache.store.content.blobs"


def import_cost(runs: int) -> dict[str, float]:
    """CPU milliseconds over a bare interpreter, the least of all runs."""

    def cpu(code: str) -> float:
        timed = (
            f"{code}\nimport resource as r\nu = r.getrusage(r.RUSAGE_SELF)\n"
            "print(u.ru_utime + u.ru_stime)"
        )
        command = [sys.executable, "-c", timed]
        found = [_python(command) for _ in range(runs)]
        return min(map(float, found)) * 1e3

    bare = cpu("")
    codes = {
        "npugx_cache.store": "import npugx_cache.store",
        "npugx_cache.store, all that a hit loads": f"import {HIT}",
        "filelock": "import filelock",
        "diskcache": "import diskcache",
    }
    return {name: cpu(code) - bare for name, code in codes.items()}


def _python(command: list[str]) -> bytes:
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment(), check=True, capture_output=True
    )
    return done.stdout


def throughput(place: Path, wheels: Path, seconds: float) -> dict[str, float]:
    """Operations a second of two processes: four gets of 4 KiB to one put, keys that are there."""
    every: dict[str, Callable[[Path], Any]] = {"ours, verified": Ours, **makers(place, wheels)}
    found: dict[str, float] = {}
    for name, make in every.items():
        rates = []
        for round_ in range(3):
            root = place / f"mixed {name} {round_}"
            try:
                make(root)
            except Exception as error:  # noqa: BLE001  # a peer that is not here is not measured
                print(f"{name}: {error}", file=sys.stderr)
                break
            rates.append(_together(make, root, seconds))
        if rates:
            found[name] = statistics.median(rates)
    return found


def _mix(store: Any, who: int, seconds: float) -> float:
    rng = random.Random(who)
    data = rng.randbytes(4096)
    keys = [hashlib.sha256(b"%d first" % who).hexdigest()]
    store.put(keys[0], data)
    assert store.get(keys[0]) == data  # what is imported late is imported now
    done = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        if done % 5 == 0:
            keys.append(hashlib.sha256(b"%d %d" % (who, done)).hexdigest())
            store.put(keys[-1], data)
        else:
            assert store.get(rng.choice(keys)) == data
        done += 1
    return done / seconds


def _together(make: Callable[[Path], Any], root: Path, seconds: float) -> float:
    """Each process opens the store for itself: what SQLite opened must not be forked.

    One comes first, for a moment: not every peer can be created by two at once.
    """
    _rates(make, root, [0.01])
    return sum(_rates(make, root, [seconds, seconds]))


def _rates(make: Callable[[Path], Any], root: Path, times: list[float]) -> list[float]:
    out, into = os.pipe()
    for who, seconds in enumerate(times):
        if os.fork() == 0:
            try:
                os.write(into, f"{_mix(make(root), who, seconds):.3f}".encode().ljust(32))
            finally:
                os._exit(0)
    os.close(into)
    rates = [float(os.read(out, 32) or "nan") for _ in times]
    os.close(out)
    for _ in times:
        os.wait()
    return rates


FLIGHT = """
import json, os, sys, time
from pathlib import Path
from npugx_cache.config import Settings
from npugx_cache.store import Draft, open_folder
import diskcache, filelock, npugx_cache.store.content.lock, npugx_cache.store.content.publish
kind, root, processes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
root.mkdir(parents=True, exist_ok=True)
result = root / "result"
def ours():
    store = open_folder(Settings(cache_dir=root / "cache"))
    key = "ab" * 32
    there = lambda: bool(store.candidates(key).manifests)
    if there(): return 0
    with store.lock(key, wait=60, done=there):
        if there(): return 0
        time.sleep(0.3)
        store.publish(Draft(key=key, identity=key, kind="graph", cost_seconds=0.3, factors=(),
                            about={}, blobs={"x": b"1"}))
        return 1
def locked(lock):
    if result.exists(): return 0
    with lock:
        if result.exists(): return 0
        time.sleep(0.3)
        result.with_suffix(".tmp").write_bytes(b"1")
        result.with_suffix(".tmp").rename(result)
        return 1
work = {"ours": ours, "filelock": lambda: locked(filelock.FileLock(root / "lock")),
        "diskcache.Lock": lambda: locked(diskcache.Lock(diskcache.Cache(str(root / "dc")), "k")),
        }[kind]
start, go = os.pipe(); out, into = os.pipe()
for _ in range(processes):
    if os.fork() == 0:
        os.close(go); os.read(start, 1)
        compiled = work()
        os.write(into, json.dumps([compiled, time.time()]).encode().ljust(64)); os._exit(0)
os.close(start); os.close(go); os.close(into)
rows = [json.loads(os.read(out, 64)) for _ in range(processes)]
first = min(t for c, t in rows if c)
print(json.dumps([sum(c for c, _ in rows), (max(t for _, t in rows) - first) * 1e3]))
"""


def single_flight(place: Path, processes: int, rounds: int) -> dict[str, dict[str, float]]:
    """How many of the processes computed one result, and ms from the first of them to the last."""
    found: dict[str, dict[str, float]] = {}
    for kind in ("ours", "filelock", "diskcache.Lock"):
        rows = []
        for round_ in range(rounds):
            root = place / f"flight {kind} {round_}"
            command = [sys.executable, "-c", FLIGHT, kind, str(root), str(processes)]
            rows.append(json.loads(_python(command)))
        found[kind] = {
            "computed, most": max(row[0] for row in rows),
            "last after the first, ms": statistics.median(row[1] for row in rows),
        }
    return found
