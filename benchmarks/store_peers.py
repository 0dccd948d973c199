"""The peers of the store: caches that keep bytes under a key, each behind `put` and `get`.

Installed ones are imported. Of joblib, jax and triton only the cache's own files are taken, out of
wheels in a folder, and run alone: `pip download --no-deps -d DIR joblib cloudpickle jax triton`.
"""

from __future__ import annotations

import abc
import importlib
import importlib.util
import sys
import types
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def makers(place: Path, wheels: Path) -> dict[str, Callable[[Path], Any]]:
    """Return what makes each peer at a folder; raises whatever it lacks."""
    return {
        "diskcache": _Diskcache,
        "diskcache, 8 shards": _Fanout,
        "inductor, write_atomic": _Inductor,
        "joblib": lambda root: (
            _unpacked(wheels, "cloudpickle", "cloudpickle/", place)
            and _Joblib(root, _unpacked(wheels, "joblib", "joblib/", place))
        ),
        "jax": lambda root: _Jax(root, _unpacked(wheels, "jax", "jax/_src/", place), -1),
        "jax, bounded": lambda root: _Jax(
            root, _unpacked(wheels, "jax", "jax/_src/", place), 1 << 30
        ),
        "triton": lambda root: _Triton(
            root, _unpacked(wheels, "triton", "triton/runtime/cache.py", place)
        ),
    }


def load(place: Path, wheels: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Make every peer that can be had, and say why the others can't."""
    peers: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    for name, make in makers(place, wheels).items():
        try:
            peers[name] = make(place / f"peer {name}")
        except Exception as error:  # noqa: BLE001  # whatever a peer lacks, the others are measured
            skipped[name] = f"{type(error).__name__}: {error}"
    return peers, skipped


def _unpacked(wheels: Path, package: str, part: str, place: Path) -> Path:
    found = sorted(wheels.glob(f"{package}-*.whl"))
    if not found:
        raise FileNotFoundError(f"no wheel of {package} in {wheels}")
    target = place / f"wheel-{package}"
    if target.exists():
        return target
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
        self.put, self.get = self.cache.set, self.cache.get


class _Fanout:
    def __init__(self, root: Path) -> None:
        import diskcache

        self.cache = diskcache.FanoutCache(str(root), shards=8, eviction_policy="none")
        self.put, self.get = self.cache.set, self.cache.get


class _Inductor:
    """torch's `write_atomic`, which its local cache writes files with."""

    def __init__(self, root: Path) -> None:
        from torch._inductor.codecache import write_atomic

        root.mkdir(exist_ok=True)
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
    """jax's file without jax: its path class is pathlib's here. Bounded, it locks and evicts."""

    def __init__(self, root: Path, unpacked: Path, max_size: int) -> None:
        import pathlib

        folder = unpacked / "jax/_src"
        package = types.ModuleType("jax")
        source = types.ModuleType("jax._src")
        path: Any = types.ModuleType("jax._src.path")
        path.Path, path.epath_installed = pathlib.Path, False
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
        root.mkdir(exist_ok=True)
        self.cache = cache(str(root), max_size=max_size)
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
