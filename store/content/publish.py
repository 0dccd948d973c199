"""Publishes entries: blobs first, then the manifest. Readers see a whole entry or none."""

from __future__ import annotations

import contextlib
import errno
import time
from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.store.content import blobs
from npugx_cache.store.content.files import Fault, move, read_file, stage, unlinked_on_error
from npugx_cache.store.format.layout import make_parents, stamp_shard
from npugx_cache.store.format.manifest import MAX_BYTES, Draft, Manifest, assemble, decode, encode
from npugx_cache.store.format.plain import Malformed
from npugx_cache.store.format.signing import Unsigned
from npugx_cache.store.io import syscalls
from npugx_cache.store.results import Miss

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.store.content.blobs import Packed
    from npugx_cache.store.format.layout import Folder

# Only entries that took longer to compile are synced, because an fsync costs milliseconds.
_DURABLE_SECONDS = 0.5
# With more blobs than this, one syncfs is faster than an fsync for each, even if syncfs also has to
# write unsynced data of other processes.
_ONE_BY_ONE = 16
_NOT_FOR_FOLDERS = frozenset({errno.ENOENT, errno.EINVAL, errno.ENOTSUP})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Prepared(NamedTuple):
    """A draft in its stored form."""

    manifest: Manifest
    data: bytes
    blobs: tuple[Packed, ...]
    durable: bool

    @property
    def stored_bytes(self) -> int:
        return len(self.data) + sum(len(blob.stored) for blob in self.blobs)


def prepare(draft: Draft, secret: bytes | None = None) -> Prepared:
    """Compress, hash and encode a draft; raises `Malformed` if a part of it can't be stored."""
    try:
        packed = tuple(
            blobs.pack(name, bytes(data), compress=name not in draft.uncompressed)
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
    """Write an entry; raises OSError. On a full disk, retry once if `make_room(bytes)` agrees."""
    written: list[str] = []
    try:
        try:
            _write(folder, entry, written)
        except OSError as error:
            if error.errno not in _FULL or not make_room(entry.stored_bytes):
                raise
            _write(folder, entry, written)
    except OSError:
        # No manifest names the new blobs, so they would fill the disk until a cleaner comes. If
        # another publisher has just found one of them, it writes the blob again (see _write).
        for path in written:
            with contextlib.suppress(OSError):
                folder.tree.unlink(path)
        raise


def _write(folder: Folder, entry: Prepared, written: list[str]) -> None:
    many = entry.durable and len(entry.blobs) > _ONE_BY_ONE
    durable = entry.durable and not many
    path = folder.manifest(entry.manifest.key, entry.manifest.entry)
    changed: set[str] = set()
    for blob in entry.blobs:
        new = blobs.write(folder, blob, durable=durable, changed=changed)
        written += [folder.blob(blob.ref.sha256)] if new else []
    if many:
        # Until now the blobs could lie unsynced in their places, because no manifest names them.
        folder.tree.sync_filesystem()
    staged = stage(folder, path, (entry.data,), durable=entry.durable)
    with unlinked_on_error(folder, staged, path):
        if durable:
            sync_folders(folder, changed)
        changed = _announce(folder, entry.manifest, staged, path)
    for blob in entry.blobs:
        # A cleaner may have removed a blob after we found it and before our manifest named it.
        if not blobs.is_there(folder, blob.ref):
            blobs.write(folder, blob, durable=entry.durable, changed=changed)
    if entry.durable:
        # The entry is in place: an error of this last step must not remove its blobs.
        with contextlib.suppress(OSError):
            sync_folders(folder, changed)
    mark(folder, entry.manifest)


def _announce(folder: Folder, manifest: Manifest, staged: str, path: str) -> set[str]:
    """Move the manifest to its place, where readers find it; return the folders to sync.

    The shard's mtime changes before the move as well as after it. Otherwise, if the process were
    killed in between, the entry would be missing from every index. A new key folder changes the
    mtime by itself.
    """
    try:
        new = folder.make_folder(folder.key(manifest.key))
    except FileNotFoundError:
        new = False
    if not new:
        stamp_shard(folder, manifest.key)
    changed = move(folder, staged, path)
    stamp_shard(folder, manifest.key)
    return changed | {folder.shard(manifest.key)} if new else changed


def sync_folders(folder: Folder, folders: set[str]) -> None:
    """Make the names in these folders survive a power cut; raises OSError."""
    for path in sorted(folders):
        try:
            folder.tree.fsync(path)
        except OSError as error:
            # ENOENT: a cleaner removed the folder while it was empty; _write writes missing blobs
            # again after the manifest. The others: this file system can't sync a folder.
            if error.errno not in _NOT_FOR_FOLDERS:
                raise


def mark(folder: Folder, manifest: Manifest) -> None:
    """Note that a key belongs to a function. Best effort, because markers decide no hit."""
    path = folder.marker(manifest.identity, manifest.key)
    with contextlib.suppress(OSError):
        try:
            fd = folder.open_new(path)
        except FileNotFoundError:
            make_parents(folder, path)
            fd = folder.open_new(path)
        except FileExistsError:
            folder.tree.touch(path)
            return
        syscalls.close(fd)


# Whole entries are copied between stores as their stored bytes, with their signatures.


def take(folder: Folder, key: str, entry: str) -> Prepared | Miss:
    """Read an entry in its stored form, after verifying its manifest and all blobs."""
    found = stored_manifest(folder, key, entry)
    if isinstance(found, Miss):
        return found
    manifest, data = found
    packed: list[Packed] = []
    for ref in manifest.blobs:
        stored = blobs.read_stored_bytes(folder, ref)
        if isinstance(stored, Miss):
            return stored
        packed.append(blobs.Packed(ref=ref, stored=stored))
    return Prepared(manifest=manifest, data=data, blobs=tuple(packed), durable=False)


def stored_manifest(folder: Folder, key: str, entry: str) -> tuple[Manifest, bytes] | Miss:
    """Read a manifest and its stored form, after verifying that it belongs to this place."""
    found = read_file(folder, folder.manifest(key, entry), limit=MAX_BYTES)
    if isinstance(found, Fault):
        return Miss(reason=found.reason)
    try:
        manifest = decode(found.data, key, folder.secret)
    except (Malformed, Unsigned) as error:
        return Miss(reason=str(error))
    if manifest.entry != entry:
        return Miss(reason="the manifest of another entry")
    return manifest, found.data
