"""One point of a curve of `scale.py`, in a process of its own; prints one JSON object."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from measuring import Numbers, Stopwatch
from models import qwen3

from npugx_cache import cache_compile

if TYPE_CHECKING:
    from collections.abc import Callable

LEVEL = 0
X = torch.ones(8)
STEADY_ROUNDS = 20


def shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """One graph for each number; the signature of a call tells which."""
    return (x + by).relu()


def levelled(x: torch.Tensor) -> torch.Tensor:
    """One graph for each LEVEL, which only the guards of an entry know."""
    return (x * LEVEL).relu()


def layers(count: str, folder: str, *_: str) -> Numbers:
    """A model of so many layers: restored, run, and its guards checked."""
    model, inputs = qwen3(int(count))
    cached: Any = cache_compile(model.forward, cache_dir=folder)
    found = _restored(lambda: cached.warm(**inputs), cached)
    watch = Stopwatch()
    cached(**inputs)
    found |= watch.read("run")
    cached(**inputs)  # makes the C++ managers
    found["memory_later"] = _memory() - found.pop("_before")
    args = (cached._owner,)
    other = qwen3(int(count))[0]

    def check(evict: Callable[[], object]) -> float:
        spent = []
        for _ in range(STEADY_ROUNDS):
            evict()
            spent.append(_cpu(lambda: cached._find(args, inputs)))
        return statistics.median(spent) * 1e6

    return found | {
        "check_us": check(lambda: None),
        "check_cold_us": check(lambda: other(**inputs)),
        "disk": _disk(Path(folder)),
    }


def specialisations(count: str, folder: str, *_: str) -> Numbers:
    """So many graphs of one function in one process: made or restored, then called."""
    cached: Any = cache_compile(shifted, cache_dir=folder, dynamic=False)
    numbers = range(int(count))
    shifted(X, 1)
    found = _restored(lambda: [cached.warm(X, by) for by in numbers], cached, expected=int(count))
    for by in numbers:  # makes the C++ managers
        cached(X, by)
    cached(X, 0)
    found["memory_later"] = _memory() - found.pop("_before")
    same = [_cpu(lambda: cached._find((X, 0), {})) for _ in range(STEADY_ROUNDS)]
    turn = [_cpu(partial(cached._find, (X, by), {})) for by in (*numbers, *numbers)]
    return found | {
        "same_us": statistics.median(same) * 1e6,
        "in_turn_us": statistics.median(turn) * 1e6,
    }


def told(count: str, folder: str, *fill: str) -> Numbers:
    """One of so many entries under a key, told apart by the signature."""
    cached = cache_compile(shifted, cache_dir=folder, dynamic=False)
    shifted(X, 1)
    return _one_of(lambda by: cached.warm(X, by), cached, int(count), fill)


def untold(count: str, folder: str, *fill: str) -> Numbers:
    """One of so many entries under a key, told apart by their guards alone; the oldest of them."""

    def warm(level: int) -> None:
        global LEVEL  # noqa: PLW0603 - the traced function reads it
        LEVEL = level
        cached.warm(X)

    cached = cache_compile(levelled, cache_dir=folder, dynamic=False)
    levelled(X)
    return _one_of(warm, cached, int(count), fill)


def _one_of(
    warm: Callable[[int], object], cached: Any, count: int, fill: tuple[str, ...]
) -> Numbers:
    """Restore number 0, the oldest; to fill the store, compile the others afterwards."""
    found = _restored(lambda: warm(0), cached)
    for number in range(1, count if fill else 1):
        warm(number)
    return found


def store(count: str, folder: str, *fill: str) -> Numbers:
    """A small function's restore from a store with so many entries, and the listing of it."""
    cached = cache_compile(shifted, cache_dir=folder, dynamic=False)
    shifted(X, 1)
    found = _restored(lambda: cached.warm(X, 0), cached)
    if fill:
        _fill(Path(folder), int(count))
    command = [sys.executable, "-m", "npugx_cache.cli", "ls", "--dir", folder]
    watch = Stopwatch()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return found | watch.read("ls")


def _fill(folder: Path, count: int) -> None:
    from npugx_cache.config import Settings
    from npugx_cache.store import FolderStore, open_folder

    opened = open_folder(Settings(cache_dir=folder))
    assert isinstance(opened, FolderStore), opened
    keys = sum(1 for _ in (folder / "v1/ac").glob("*/*"))
    for number in range(keys, count):
        opened.publish(_draft(number))
    for shard in (folder / "v1/ac").iterdir():  # what has just changed is not indexed yet
        os.utime(shard, (time.time() - 60,) * 2)


def _draft(number: int) -> Any:
    from npugx_cache.store import Draft

    return Draft(
        key=hashlib.sha256(b"%d" % number).hexdigest(),
        identity=hashlib.sha256(b"%d" % (number % 100)).hexdigest(),
        kind="graph",
        cost_seconds=0.1,  # no fsync below half a second
        factors=(("torch", "2.13", "process"),) * 12,
        about={"function": f"model.layer{number % 100}", "signature": f"f32[{number}]"},
        blobs={"conditions": b"one for all"},
    )


def _restored(warm: Callable[[], object], cached: Any, expected: int = 1) -> Numbers:
    """CPU and memory of what `warm` restores, and whether it did rather than compile."""
    gc.collect()  # torch's objects take one 80 ms, and it falls where it likes
    before = _memory()
    watch = Stopwatch()
    warm()
    found = watch.read("restore") | {"memory": _memory() - before, "_before": before}
    info = cached.cache_info()
    return found | {"restored": info.hits == expected and not info.misses}


def _cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _memory() -> int:
    """Resident bytes of this process."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


FIGURES = {each.__name__: each for each in (layers, specialisations, told, untold, store)}

if __name__ == "__main__":
    torch.set_num_threads(1)
    what, *arguments = sys.argv[1:]
    with torch.no_grad():
        found = FIGURES[what](*arguments)
    found.pop("_before", None)
    print(json.dumps(found))
