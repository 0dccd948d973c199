"""The store beside its peers, in one run: rows A1-A6, C1 and D1 of the acceptance table.

Each figure is a median; ratios to F, the same work in bare system calls in this process, are what
counts. Nothing is downloaded: `--peers DIR` names a folder with the wheels of peers, whose cache
files are taken out and run alone: `pip download --no-deps -d DIR joblib cloudpickle jax triton`.
"""

from __future__ import annotations

import abc
import argparse
import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npugx_cache.config import Settings
from npugx_cache.store import Draft, FolderStore, open_folder

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 64 << 10
REPOSITORY = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--place", default=tempfile.gettempdir(), help="a folder of the disk to measure"
    )
    parser.add_argument("--peers", help="a folder with wheels of joblib, jax and triton")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument(
        "--entries", type=int, default=20_000, help="of the listing, 0 to leave it out"
    )
    parser.add_argument("--json", help="write the figures to this file as well")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.place) as name, contextlib.ExitStack() as stack:
        place = Path(name)
        os.environ["XDG_STATE_HOME"] = str(place / "state")
        peers, skipped = load_peers(place, args.peers, stack)
        figures = {
            **get_and_put(place, peers, args.rounds),
            "A6 import, CPU ms over bare": import_cost(),
            "C1 single flight": single_flight(place),
        }
        if args.entries:
            figures[f"D1 listing of {args.entries}"] = listing(place, args.entries)
    report = {"figures": figures, "skipped": skipped}
    print_table(report)
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=2) + "\n")


# --- ours and the floor


class Ours:
    """A get is what a hit does: the manifests of the key, then the blob, all verified."""

    def __init__(self, root: Path, cost: float, **settings: Any) -> None:
        store = open_folder(Settings(cache_dir=root, **settings))
        assert isinstance(store, FolderStore), store
        self.store, self.cost = store, cost

    def put(self, key: str, data: bytes) -> None:
        self.store.publish(
            Draft(
                key=key,
                identity=key,
                kind="graph",
                cost_seconds=self.cost,
                factors=(("torch", "2.13", "process"),),
                about={},
                blobs={"x": data},
                uncompressed=frozenset({"x"}),
            )
        )

    def get(self, key: str) -> bytes | None:
        for manifest in self.store.candidates(key).manifests:
            found = self.store.read(manifest, ("x",))
            if isinstance(found, dict):
                data: bytes = found["x"]
                return data
        return None


class Floor:
    """The bare system calls: write, rename; open, read. `sync` and `verify` as asked."""

    def __init__(self, root: Path, *, sync: bool = False, verify: bool = False) -> None:
        root.mkdir()
        self.root, self.sync, self.verify = root, sync, verify

    def put(self, key: str, data: bytes) -> None:
        temporary = f"{self.root}/{key}.tmp"
        fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        os.write(fd, data)
        if self.sync:
            os.fsync(fd)
        os.close(fd)
        os.rename(temporary, f"{self.root}/{key}")  # noqa: PTH104  # the floor is the bare call
        if self.sync:
            fd = os.open(self.root, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)

    def get(self, key: str) -> bytes | None:
        try:
            fd = os.open(f"{self.root}/{key}", os.O_RDONLY)
        except FileNotFoundError:
            return None
        data = os.read(fd, SIZE)
        os.close(fd)
        if self.verify:
            hashlib.sha256(data).digest()
        return data


# --- peers


def load_peers(
    place: Path, wheels: str | None, stack: contextlib.ExitStack
) -> tuple[dict[str, Any], dict[str, str]]:
    makers: dict[str, Callable[[Path], Any]] = {
        "diskcache": lambda root: stack.enter_context(contextlib.closing(_Diskcache(root))),
        "torch write_atomic": _Inductor,
        "joblib": lambda root: (
            _unpacked(wheels, "cloudpickle", "cloudpickle/", place)
            and _Joblib(root, _unpacked(wheels, "joblib", "joblib/", place))
        ),
        "jax lru_cache": lambda root: _Jax(root, _unpacked(wheels, "jax", "jax/_src/", place)),
        "triton cache": lambda root: _Triton(
            root, _unpacked(wheels, "triton", "triton/runtime/cache.py", place)
        ),
    }
    peers: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    for name, make in makers.items():
        try:
            peers[name] = make(place / name.replace(" ", "_"))
        except Exception as error:  # noqa: BLE001  # whatever a peer lacks, the others are measured
            skipped[name] = f"{type(error).__name__}: {error}"
    return peers, skipped


def _unpacked(wheels: str | None, package: str, part: str, place: Path) -> Path:
    if wheels is None:
        raise FileNotFoundError("no --peers folder given")
    found = sorted(Path(wheels).glob(f"{package}-*.whl"))
    if not found:
        raise FileNotFoundError(f"no wheel of {package} in the --peers folder")
    target = place / f"wheel-{package}"
    with zipfile.ZipFile(found[-1]) as archive:
        for name in archive.namelist():
            if name.startswith(part) and "/test/" not in name:
                archive.extract(name, target)
    return target


def _module(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Diskcache:
    def __init__(self, root: Path) -> None:
        import diskcache

        self.cache = diskcache.Cache(str(root), eviction_policy="none")
        self.put, self.get, self.close = self.cache.set, self.cache.get, self.cache.close


class _Inductor:
    """torch's `write_atomic`, which its local cache writes files with."""

    def __init__(self, root: Path) -> None:
        from torch._inductor.codecache import write_atomic

        root.mkdir()
        self.root, self.write = root, write_atomic

    def put(self, key: str, data: bytes) -> None:
        self.write(f"{self.root}/{key}", data)

    def get(self, key: str) -> bytes | None:
        path = self.root / key
        return path.read_bytes() if path.exists() else None


class _Joblib:
    def __init__(self, root: Path, unpacked: Path) -> None:
        wheels = (
            unpacked.parent / "wheel-cloudpickle"
        )  # joblib imports it, for what is not measured
        sys.path[:0] = [str(unpacked), str(wheels)]
        self.backend = importlib.import_module("joblib._store_backends").FileSystemStoreBackend()
        self.backend.configure(str(root), verbose=0, backend_options={"compress": False})

    def put(self, key: str, data: bytes) -> None:
        self.backend.dump_item((key,), data, verbose=0)

    def get(self, key: str) -> bytes | None:
        if not self.backend.contains_item((key,)):
            return None
        data: bytes = self.backend.load_item((key,), verbose=0)
        return data


class _Jax:
    """jax's file without jax: its path class is pathlib's here."""

    def __init__(self, root: Path, unpacked: Path) -> None:
        import pathlib

        folder = unpacked / "jax/_src"
        package = types.ModuleType("jax")
        source = types.ModuleType("jax._src")
        path: Any = types.ModuleType("jax._src.path")
        path.Path = pathlib.Path
        source.path = path  # type: ignore[attr-defined]
        util: Any = types.ModuleType("jax._src.util")
        util.StrictABC = abc.ABC
        source.util = util  # type: ignore[attr-defined]
        stubs = {
            "jax": package,
            "jax._src": source,
            "jax._src.path": path,
            "jax._src.util": util,
        }
        sys.modules.update(stubs)
        try:
            name = "jax._src.compilation_cache_interface"
            sys.modules[name] = _module(name, folder / "compilation_cache_interface.py")
            cache = _module("jax._src.lru_cache", folder / "lru_cache.py").LRUCache
        finally:
            for stub in (*stubs, "jax._src.compilation_cache_interface"):
                sys.modules.pop(stub, None)
        root.mkdir()
        self.cache = cache(str(root), max_size=-1)
        self.put, self.get = self.cache.put, self.cache.get


class _Triton:
    """triton's file without triton: its knobs are two folders here."""

    def __init__(self, root: Path, unpacked: Path) -> None:
        triton: Any = types.ModuleType("triton")
        triton.__version__ = "0"
        cache = types.SimpleNamespace(dir=str(root), dump_dir=str(root), override_dir=str(root))
        triton.knobs = types.SimpleNamespace(cache=cache)
        before = sys.modules.get("triton")
        sys.modules["triton"] = triton
        try:
            module = _module("triton_cache_alone", unpacked / "triton/runtime/cache.py")
        finally:
            sys.modules.pop("triton")
            if before is not None:
                sys.modules["triton"] = before
        self.manager = module.FileCacheManager

    def put(self, key: str, data: bytes) -> None:
        self.manager(key).put(data, "x", binary=True)

    def get(self, key: str) -> bytes | None:
        found = self.manager(key).get_file("x")
        return None if found is None else Path(found).read_bytes()


# --- figures


def get_and_put(place: Path, peers: dict[str, Any], rounds: int) -> dict[str, dict[str, float]]:
    key_file = place / "key"
    key_file.write_text("5a" * 32)
    key_file.chmod(0o600)
    stores: dict[str, Any] = {
        "F": Floor(place / "floor"),
        "F + sha256": Floor(place / "floor_verify", verify=True),
        "F + fsync": Floor(place / "floor_sync", sync=True),
        "ours": Ours(place / "ours", 0.0),
        "ours, signed": Ours(place / "signed", 0.0, trust="signed", key_file=key_file),
        "ours, durable": Ours(place / "durable", 60.0),
        **peers,
    }
    keys = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(rounds)]
    missing = [hashlib.sha256(b"no %d" % number).hexdigest() for number in range(rounds)]
    data = [os.urandom(SIZE) for _ in range(rounds)]
    put = interleaved(stores, lambda store, at: store.put(keys[at], data[at]), rounds)
    get = interleaved(stores, lambda store, at: _right(store.get(keys[at]), data[at]), rounds)
    again = interleaved(stores, lambda store, at: store.get(keys[at]), rounds)
    miss = interleaved(stores, lambda store, at: store.get(missing[at]), rounds)
    return {
        "A1 get, 64 KiB, us": get,
        "A2 get again, us": again,
        "A3 miss, us": miss,
        "A4 put, 64 KiB, us": put,
        "A5 one entry of 40 blobs, us per blob": batch(place),
    }


def _right(found: bytes | None, wanted: bytes) -> None:
    assert found == wanted


def interleaved(
    stores: dict[str, Any], work: Callable[[Any, int], object], rounds: int
) -> dict[str, float]:
    """Median microseconds, every store in turn: a busy moment of the machine hits them all."""
    times: dict[str, list[float]] = {name: [] for name in stores}
    for at in range(rounds):
        for name, store in stores.items():
            started = time.perf_counter()
            work(store, at)
            times[name].append(time.perf_counter() - started)
    return {name: round(statistics.median(row) * 1e6, 1) for name, row in times.items()}


def batch(place: Path) -> dict[str, float]:
    """Entries of many blobs, durable, against the same files written without any sync."""
    floor = Floor(place / "floor_batch")
    store = Ours(place / "batch", 60.0).store
    rows: dict[str, list[float]] = {"F": [], "ours, durable": []}
    for number in range(10):
        blobs = {f"b{at}": os.urandom(4096) for at in range(40)}
        started = time.perf_counter()
        for name, data in blobs.items():
            floor.put(f"{number}{name}", data)
        rows["F"].append(time.perf_counter() - started)
        draft = Draft(
            key=f"{number:064x}",
            identity="b" * 64,
            kind="graph",
            cost_seconds=60.0,
            factors=(),
            about={},
            blobs=blobs,
            uncompressed=frozenset(blobs),
        )
        started = time.perf_counter()
        store.publish(draft)
        rows["ours, durable"].append(time.perf_counter() - started)
    return {name: round(statistics.median(row) / 40 * 1e6, 1) for name, row in rows.items()}


def import_cost() -> dict[str, float]:
    def cpu(code: str) -> float:
        timed = (
            f"{code}\nimport resource as r\nu = r.getrusage(r.RUSAGE_SELF)\n"
            "print(u.ru_utime + u.ru_stime)"
        )
        command = [sys.executable, "-c", timed]
        runs = [
            float(subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True).stdout)
            for _ in range(12)
        ]
        return min(runs) * 1e3

    bare = cpu("")
    modules = "npugx_cache.store.folder_store, npugx_cache.store.blobs"
    names = {
        "ours": f"import {modules}",
        "filelock": "import filelock",
        "diskcache": "import diskcache",
    }
    return {name: round(cpu(code) - bare, 1) for name, code in names.items()}


FLIGHT = """
import json, os, sys, time
from pathlib import Path
from npugx_cache.config import Settings
from npugx_cache.store import Draft, open_folder
import diskcache, filelock, npugx_cache.store.lock, npugx_cache.store.publish
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


def single_flight(place: Path) -> dict[str, float]:
    """64 processes, one result: how many computed it, and ms from the first to the last."""
    figures: dict[str, float] = {}
    for kind in ("ours", "filelock", "diskcache.Lock"):
        rows = []
        for round_ in range(3):
            root = place / f"flight-{kind}-{round_}"
            done = subprocess.run(
                [sys.executable, "-c", FLIGHT, kind, str(root), "64"],
                cwd=REPOSITORY,
                check=True,
                capture_output=True,
            )
            rows.append(json.loads(done.stdout))
        figures[f"{kind}: computed"] = max(row[0] for row in rows)
        figures[f"{kind}: last, ms"] = round(statistics.median(row[1] for row in rows), 1)
    return figures


def listing(place: Path, entries: int) -> dict[str, float]:
    root = place / "many"
    store = Ours(root, 0.0).store
    for number in range(entries):
        key = hashlib.sha256(b"%d" % number).hexdigest()
        store.publish(
            Draft(
                key=key,
                identity="b" * 64,
                kind="graph",
                cost_seconds=0.1,
                factors=(("torch", "2.13", "process"),) * 12,
                about={"function": f"model.layer{number % 99}", "signature": f"f32[{number}]"},
                blobs={"x": b"%d" % number},
            )
        )
    for part in ("ac", "cas"):
        for shard in (root / "v1" / part).iterdir():
            os.utime(shard, (time.time() - 60, time.time() - 60))
    figures = {}

    def timed(name: str, work: Callable[[], object]) -> None:
        started = time.perf_counter()
        work()
        figures[name] = round((time.perf_counter() - started) * 1e3, 1)

    command = [sys.executable, "-m", "npugx_cache.cli", "ls", "--dir", str(root)]
    timed("F: scan and read every manifest", lambda: _scan(root))
    timed("index built", store.overview)
    timed("index read", store.overview)
    for number in (1, 2, 3):
        timed(
            f"ls, whole process, {number}",
            lambda: subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True),
        )
    return figures


def _scan(root: Path) -> int:
    total = 0
    for folder, _, names in os.walk(root / "v1/ac"):
        for name in names:
            total += len((Path(folder) / name).read_bytes())
    return total


def print_table(report: dict[str, Any]) -> None:
    for title, row in report["figures"].items():
        print(f"\n{title}")
        floor = row.get("F + sha256" if title.startswith("A1") else "F")
        for name, number in row.items():
            ratio = f"  {number / floor:6.2f} F" if floor else ""
            print(f"  {name:<34}{number:>12.1f}{ratio}")
    for name, reason in report["skipped"].items():
        print(f"\nnot measured: {name}: {reason}")


if __name__ == "__main__":
    main()
