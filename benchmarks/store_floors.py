"""Ours behind `put` and `get`, and the floors: the same work in bare system calls."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from npugx_cache.config import Settings
from npugx_cache.store import Draft, FolderStore, open_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FACTORS = tuple((f"factor {number}", "2.13.0+cpu", "process") for number in range(12))
FUNCTION = "f" * 64


class Ours:
    """A get is what a hit does: the manifests of the key, then the blob, all verified."""

    def __init__(self, root: Path, cost: float = 0.0, **settings: Any) -> None:
        store = open_folder(Settings(cache_dir=root, **settings))
        assert isinstance(store, FolderStore), store
        self.store, self.cost = store, cost

    def put(self, key: str, data: bytes) -> None:
        self.store.publish(self.draft(key, {"x": data}))

    def draft(self, key: str, blobs: Mapping[str, bytes], **about: str) -> Draft:
        return Draft(
            key=key,
            identity=FUNCTION,
            kind="graph",
            cost_seconds=self.cost,
            factors=FACTORS,
            about=about,
            blobs=blobs,
            uncompressed=frozenset(blobs),
        )

    def get(self, key: str) -> bytes | None:
        for manifest in self.store.candidates(key).manifests:
            found = self.store.read(manifest, ("x",))
            if isinstance(found, dict):
                data: bytes = found["x"]
                return data
        return None


class BlobAlone:
    """The blob of an entry whose manifest is at hand."""

    def __init__(self, ours: Ours, keys: list[str]) -> None:
        self._store = ours.store
        self._manifests = {key: ours.store.candidates(key).manifests[0] for key in keys}

    def get(self, key: str) -> bytes | None:
        found = self._store.read(self._manifests[key], ("x",))
        assert isinstance(found, dict), found
        data: bytes = found["x"]
        return data


class Floor:
    """One file: write, rename; open, read. `sync` and `verify` as asked."""

    def __init__(self, root: Path, *, sync: bool = False, verify: bool = False) -> None:
        root.mkdir(exist_ok=True)
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
            sync_folder(str(self.root))

    def get(self, key: str) -> bytes | None:
        try:
            data = read(f"{self.root}/{key}")
        except FileNotFoundError:
            return None
        if self.verify:
            hashlib.sha256(data).digest()
        return data


class EntryFloor:
    """The files of an entry in bare calls: a folder, a manifest of its size in it, and a blob.

    What an entry costs over one file that is more than these calls is ours to answer for.
    """

    def __init__(self, root: Path, *, sync: bool = False) -> None:
        self._one = Floor(root, sync=sync)
        self._manifest = os.urandom(900)

    def put(self, key: str, data: bytes) -> None:
        root, one = self._one.root, self._one
        one.put(f"{key}.blob", data)
        os.mkdir(f"{root}/{key}")  # noqa: PTH102
        one.put(f"{key}/manifest", self._manifest)
        os.close(os.open(f"{root}/{key}.marker", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        if one.sync:
            sync_folder(f"{root}/{key}")

    def get(self, key: str) -> bytes | None:
        root = self._one.root
        try:
            names = os.listdir(f"{root}/{key}")  # noqa: PTH208
        except FileNotFoundError:
            return None
        for name in names:
            hashlib.sha256(read(f"{root}/{key}/{name}")).digest()
        data = read(f"{root}/{key}.blob")
        hashlib.sha256(data).digest()
        return data


def read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    # Not a larger buffer: the pages of one that is mapped for each read take longer than the read.
    data = os.read(fd, os.fstat(fd).st_size)
    os.close(fd)
    return data


def sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
