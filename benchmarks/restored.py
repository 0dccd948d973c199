"""Where the time of a restored first call goes, phase by phase, and what its floor is.

Each column is one model, of the default backend or of inductor; each number is the median over
fresh processes. The floor is a call without the cache, and reading and hashing the files that a
restore reads. That call is eager's own first one, also for inductor, whose library runs the same
operators in fewer kernels.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measuring import Numbers, Stopwatch, fresh, markdown, rounds, run_script
from models import qwen3
from phases import Phases

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = ((2, "npugraph_ex"), (28, "npugraph_ex"), (28, "inductor"))
QUICK_COLUMNS, RUNS = ((2, "npugraph_ex"), (1, "inductor")), 5
STORE = "npugx_cache.store"
BEFORE = {
    "import of npugx_cache": "import_npugx_cache_cpu",
    "import of its store": "import_store_cpu",
    "decoration": "decorate_cpu",
}
PHASES = {
    "key": ("npugx_cache.answer.lookup:Lookup._look_up", "npugx_cache.answer.lookup:Lookup.answer"),
    "open the store": ("npugx_cache.store_client:StoreClient.open_store",),
    "read files": (f"{STORE}.content.blobs:read_file", f"{STORE}.content.entries:read_file"),
    "verify, list, decode manifests": (
        f"{STORE}.folder_store:FolderStore.candidates",
        f"{STORE}.content.blobs:read_stored_bytes",
    ),
    "decompress": (f"{STORE}.content.blobs:unpack",),
    "decode": (
        "npugx_cache.entry.artifact:conditions_of",
        "npugx_cache.entry.artifact:Bindings.unpack",
        "npugx_cache.conditions.check:Checker.__init__",
        "npugx_cache.entry.frame:load",
    ),
    "guards": ("npugx_cache.conditions.check:Checker.holds",),
    "source facts": ("npugx_cache.conditions.check:Checker.code_holds",),
    "bind": ("npugx_cache.entry.restore:bind",),
    "open the library": ("npugx_cache.backend.inductor.load:_load",),
    "first run, dispatch": ("npugx_cache.api:CachedFunction.__call__",),
}


def measure(quick: bool) -> Numbers:
    with tempfile.TemporaryDirectory() as root:
        columns = QUICK_COLUMNS if quick else COLUMNS
        return {_title(*column): _one(*column, quick, Path(root)) for column in columns}


def _title(layers: int, backend: str) -> str:
    return f"{layers} layers{', inductor' if backend == 'inductor' else ''}"


def _one(layers: int, backend: str, quick: bool, root: Path) -> Numbers:
    run = partial(fresh, Path(__file__), "worker", layers, backend, root / f"{layers} {backend}")
    run("restored")  # cold: fills the cache
    whats = ("restored", "floor")
    found = rounds([partial(run, what) for what in whats], 1 if quick else RUNS)
    return dict(zip(whats, found, strict=True))


def text(found: Numbers) -> str:
    return markdown(["CPU ms", *found], _rows(list(found.values())))


def _rows(sizes: list[Numbers]) -> Iterator[list[str]]:
    for phase in PHASES:
        yield [phase, *(_ms(size["restored"]["phases"][phase]) for size in sizes)]
    firsts = [size["restored"]["first_cpu"] for size in sizes]
    yield ["**restored first call**: all of these", *map(_ms, firsts)]
    floors = [(size["floor"]["first_cpu"], size["floor"]["read_cpu"]) for size in sizes]
    yield ["eager's own first call", *(_ms(eager) for eager, _ in floors)]
    yield ["read and hash the files", *(_ms(read) for _, read in floors)]
    yield ["**floor**: those two", *(_ms(eager + read) for eager, read in floors)]
    pairs = list(zip(firsts, floors, strict=True))
    yield ["**restored / eager**", *(f"{first / eager:.2f}" for first, (eager, _) in pairs)]
    for title, name in BEFORE.items():
        yield [f"before the call: {title}", *(_ms(size["restored"][name]) for size in sizes)]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


# --- in a process of its own


def worker(layers: str, backend: str, folder: str, what: str) -> Numbers:
    import torch

    torch.set_num_threads(1)
    model, inputs = qwen3(int(layers))
    gc.collect()  # else whoever makes the next objects pays for what torch's imports left
    with torch.no_grad():
        if what == "floor":
            return _first(model, inputs) | _reading(Path(folder))
        return _restored(model, inputs, backend, folder)


def _first(call: Any, inputs: Numbers) -> Numbers:
    watch = Stopwatch()
    call(**inputs)
    return watch.read("first")


def _restored(model: Any, inputs: Numbers, backend: str, folder: str) -> Numbers:
    watch = Stopwatch()
    from npugx_cache import cache_compile

    found = watch.read("import_npugx_cache")
    watch = Stopwatch()
    import npugx_cache.store.content.blobs
    import npugx_cache.store.folder_store
    import npugx_cache.store.tiers  # noqa: F401 - what a hit loads, before the call that needs it

    found |= watch.read("import_store")
    seconds = Phases(PHASES).seconds
    watch = Stopwatch()
    call = cache_compile(model, cache_dir=folder, backend=backend)
    found |= watch.read("decorate")
    found |= _first(call, inputs)
    return found | {"phases": seconds}


def _reading(folder: Path) -> Numbers:
    """Read and hash what a restore reads: the manifest and the blobs that it needs."""
    import hashlib

    from npugx_cache.config import Settings
    from npugx_cache.entry.artifact import BINDINGS, CONDITIONS, CONSTANTS, LIBRARY
    from npugx_cache.store import FolderStore, Listed, open_folder

    store = open_folder(Settings(cache_dir=folder))
    assert isinstance(store, FolderStore), store
    [entry] = store.listing()
    assert isinstance(entry, Listed), entry
    manifest = entry.manifest
    names = {BINDINGS, CONDITIONS, CONSTANTS, LIBRARY}
    needed = (ref for ref in manifest.blobs if ref.name in names)
    paths = [
        store.folder.manifest(manifest.key, manifest.entry),
        *(store.folder.blob(ref.sha256) for ref in needed),
    ]
    watch = Stopwatch()
    for path in paths:
        hashlib.sha256((store.root / path).read_bytes()).hexdigest()
    return watch.read("read")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        print(json.dumps(worker(*sys.argv[2:])))
    else:
        run_script(__doc__, measure, text)
