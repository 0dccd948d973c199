"""A store of very many entries: listing, index, statistics, planning a prune and doing it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import environment
from store_floors import Ours, read

from npugx_cache.store import PrunePolicy

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[1]


def many(place: Path, entries: int) -> dict[str, float]:
    """Milliseconds of CPU, but for the whole processes; of what is quick the least of five."""
    root = place / "many"
    ours = Ours(root)
    for number in range(entries):
        key = hashlib.sha256(b"%d" % number).hexdigest()
        about = {"function": f"model.layer{number % 99}", "signature": f"f32[{number}]"}
        ours.store.publish(ours.draft(key, {"x": b"%d" % number}, **about))
    _age(root)
    found = {"F: list the folders, read every manifest, stat every blob": _cpu(lambda: _scan(root))}
    found["index built"] = _cpu(ours.store.overview)
    found["overview, index warm"] = _least(ours.store.overview)
    ours.put("ab" * 32, b"one more")
    found["overview after one put"] = _least(ours.store.overview)
    _age(root)
    ours.store.overview()
    half = PrunePolicy(max_entries=entries // 2)
    found["plan of a prune of half (dry run)"] = _least(
        lambda: ours.store.prune(half, dry_run=True)
    )
    found |= {
        f"npugx-cache {name}, whole process, wall": _whole(root, name) for name in ("ls", "stats")
    }
    found |= _deletion(place, root)
    return found


def at_the_limit(place: Path, entries: int) -> dict[str, float]:
    """Milliseconds, wall, that a publisher waits for a store that is full and cleans itself."""
    ours = Ours(place / "full", max_entries=entries)
    for number in range(entries):
        ours.put(hashlib.sha256(b"%d" % number).hexdigest(), b"%d" % number)
    times = []
    for number in range(entries, 2 * entries):
        started = time.perf_counter()
        ours.put(hashlib.sha256(b"%d" % number).hexdigest(), b"%d" % number)
        times.append((time.perf_counter() - started) * 1e3)
    times.sort()
    ours.store.settle()
    found = {"publish, median": times[entries // 2], "p99": times[entries * 99 // 100]}
    found["longest"] = times[-1]
    found["entries left"] = len(list(ours.store.listing()))
    return found


def _age(root: Path) -> None:
    """As if the last publish were long ago: of what changed just now no index is kept."""
    before = time.time() - 60
    for part in ("ac", "cas"):
        for shard in (root / "v1" / part).iterdir():
            os.utime(shard, (before, before))


def _cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return (time.process_time() - started) * 1e3


def _least(work: Callable[[], object]) -> float:
    return min(_cpu(work) for _ in range(5))


def _whole(root: Path, name: str) -> float:
    command = [sys.executable, "-m", "npugx_cache.cli", name, "--dir", str(root)]
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run(
            command, cwd=REPOSITORY, env=environment(), check=True, stdout=subprocess.DEVNULL
        )
        times.append((time.perf_counter() - started) * 1e3)
    return min(times)


def _scan(root: Path) -> int:
    total = 0
    for folder, _, names in os.walk(root / "v1/ac"):
        for name in names:
            total += len(read(f"{folder}/{name}"))
    for folder, _, names in os.walk(root / "v1/cas"):
        for name in names:
            total += os.stat(f"{folder}/{name}").st_size  # noqa: PTH116
    return total


def _deletion(place: Path, root: Path) -> dict[str, float]:
    """Everything of a copy, by us and by a loop that knows the names and deletes as many."""
    copy = place / "copy"
    shutil.copytree(root, copy)
    entries = [(d, n) for d, _, names in os.walk(copy / "v1/ac") for n in names]
    blobs = [f"{d}/{n}" for d, _, names in os.walk(copy / "v1/cas") for n in names]
    marks = [f"{d}/{n}" for d, _, names in os.walk(copy / "v1/fn") for n in names]

    def loop() -> None:
        for folder, name in entries:
            os.unlink(f"{folder}/{name}")  # noqa: PTH108
            os.rmdir(folder)  # noqa: PTH106
        for path in (*blobs, *marks):
            os.unlink(path)  # noqa: PTH108

    floor = _cpu(loop)
    shutil.rmtree(copy)
    shutil.copytree(root, copy)
    store = Ours(copy).store
    store.overview()
    ours = _cpu(lambda: store.prune(PrunePolicy(everything=True)))
    shutil.rmtree(copy)
    return {"F: unlink what the entries consist of": floor, "prune of all": ours}
