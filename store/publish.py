"""Publish: blobs first, then the manifest that names them. Readers see an entry whole or not."""

from __future__ import annotations

import contextlib
import errno
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npugx_cache.store import blobs as blob_files
from npugx_cache.store import syscalls
from npugx_cache.store.files import write_file
from npugx_cache.store.layout import make_parents, stamp_shard
from npugx_cache.store.manifest import Draft, Manifest, assemble, encode
from npugx_cache.store.plain import Malformed

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.store.blobs import Packed
    from npugx_cache.store.layout import Folder

# An fsync costs milliseconds: worth it only for what took longer to compute.
_DURABLE_SECONDS = 0.5
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A draft in its stored form."""

    manifest: Manifest
    data: bytes
    blobs: tuple[Packed, ...]
    durable: bool

    @property
    def stored_bytes(self) -> int:
        return len(self.data) + sum(len(blob.stored) for blob in self.blobs)


def prepare(draft: Draft, secret: bytes | None = None) -> Prepared:
    """Compress, digest and encode; raises `Malformed` saying what can't be stored."""
    try:
        packed = tuple(
            blob_files.pack(name, bytes(data), compress=name not in draft.uncompressed)
            for name, data in draft.blobs.items()
        )
        manifest = assemble(draft, tuple(blob.ref for blob in packed), time.time())
    except (TypeError, ValueError, AttributeError) as error:
        raise Malformed(f"the draft can't be stored: {error}") from None
    return Prepared(
        manifest=manifest,
        data=encode(manifest, secret),
        blobs=packed,
        durable=draft.cost_seconds > _DURABLE_SECONDS,
    )


def write(folder: Folder, entry: Prepared, make_room: Callable[[int], bool]) -> None:
    """Write an entry; raises OSError. On a full disk `make_room(bytes)` is asked once."""
    written: list[str] = []
    try:
        try:
            _write(folder, entry, written)
        except OSError as error:
            if error.errno not in _FULL or not make_room(entry.stored_bytes):
                raise
            _write(folder, entry, written)
    except OSError:
        # Blobs that no manifest names would fill the disk further until a cleaner comes. A
        # publisher that has just found one of them writes it again (see _write).
        for path in written:
            with contextlib.suppress(OSError):
                syscalls.unlink(path)
        raise


def _write(folder: Folder, entry: Prepared, written: list[str]) -> None:
    manifest = entry.manifest
    path = folder.manifest(manifest.key, manifest.entry)
    made = make_parents(folder, path) + make_parents(folder, folder.temporary())
    for blob in entry.blobs:
        made += make_parents(folder, folder.blob(blob.ref.sha256))
    changed = {_parent(name) for name in made}
    for blob in entry.blobs:
        if blob_files.write(folder, blob, durable=entry.durable):
            written.append(folder.blob(blob.ref.sha256))
            changed.add(_parent(written[-1]))
    if entry.durable:
        sync_folders(changed)
    # Before as well as after: killed in between, the entry would be missing from every index.
    stamp_shard(folder, manifest.key)
    write_file(folder, path, entry.data, durable=entry.durable)
    stamp_shard(folder, manifest.key)
    renewed = {_parent(path)}
    for blob in entry.blobs:
        # A cleaner may have taken a blob between our look at it and our manifest.
        if not blob_files.is_there(folder, blob.ref):
            blob_files.write(folder, blob, durable=entry.durable)
            renewed.add(_parent(folder.blob(blob.ref.sha256)))
    if entry.durable:
        # The entry is in place: an error of the last step must not take its blobs away.
        with contextlib.suppress(OSError):
            sync_folders(renewed)
    mark(folder, manifest)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def sync_folders(folders: set[str]) -> None:
    """Make the names in these folders survive a power cut; raises OSError."""
    for path in sorted(folders):
        # A cleaner took it, empty; what is missing then is written again after the manifest.
        with contextlib.suppress(FileNotFoundError):
            syscalls.fsync_folder(path)


def mark(folder: Folder, manifest: Manifest) -> None:
    """Note that a key belongs to a function. Derived data: a failure is nobody's failure."""
    path = folder.marker(manifest.identity, manifest.key)
    with contextlib.suppress(OSError):
        make_parents(folder, path)
        try:
            syscalls.close(syscalls.open_new(path, folder.file_mode))
        except FileExistsError:
            syscalls.touch(path)
