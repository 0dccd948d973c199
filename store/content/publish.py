"""Publish: blobs first, then the manifest that names them. Readers see an entry whole or not."""

from __future__ import annotations

import contextlib
import errno
import time
from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.store.content import blobs
from npugx_cache.store.content import blobs as blob_files
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

# An fsync costs milliseconds: worth it only for what took longer to compute.
_DURABLE_SECONDS = 0.5
# Beyond so many blobs one syncfs is quicker than an fsync each, even where it has to write what
# others have left unwritten.
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
                folder.tree.unlink(path)
        raise


def _write(folder: Folder, entry: Prepared, written: list[str]) -> None:
    many = entry.durable and len(entry.blobs) > _ONE_BY_ONE
    durable = entry.durable and not many
    path = folder.manifest(entry.manifest.key, entry.manifest.entry)
    changed: set[str] = set()
    for blob in entry.blobs:
        new = blob_files.write(folder, blob, durable=durable, changed=changed)
        written += [folder.blob(blob.ref.sha256)] if new else []
    if many:
        # Unsynced blobs in their places harm nobody: nothing names them before the manifest.
        folder.tree.sync_filesystem()
    staged = stage(folder, path, entry.data, durable=entry.durable)
    with unlinked_on_error(folder, staged, path):
        if durable:
            sync_folders(folder, changed)
        changed = _announce(folder, entry.manifest, staged, path)
    for blob in entry.blobs:
        # A cleaner may have taken a blob between our look at it and our manifest.
        if not blob_files.is_there(folder, blob.ref):
            blob_files.write(folder, blob, durable=entry.durable, changed=changed)
    if entry.durable:
        # The entry is in place: an error of the last step must not take its blobs away.
        with contextlib.suppress(OSError):
            sync_folders(folder, changed)
    mark(folder, entry.manifest)


def _announce(folder: Folder, manifest: Manifest, staged: str, path: str) -> set[str]:
    """Put the manifest in its place, where readers find it; return the folders to sync.

    The shard's time changes before as well as after: killed in between, the entry would be
    missing from every index. A new key folder changes it by itself.
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
            # ENOENT: a cleaner took it, empty; what is missing is written again after the
            # manifest. The others: the file system has no such thing for a folder.
            if error.errno not in _NOT_FOR_FOLDERS:
                raise


def mark(folder: Folder, manifest: Manifest) -> None:
    """Note that a key belongs to a function. Derived data: a failure is nobody's failure."""
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


# Whole entries from one store to another: the stored bytes as they are, signatures included.


def take(folder: Folder, key: str, entry: str) -> Prepared | Miss:
    """Read an entry in its stored form, everything verified."""
    data = manifest_bytes(folder, key, entry)
    if isinstance(data, Miss):
        return data
    packed: list[blobs.Packed] = []
    manifest = decode(data, key, folder.secret)
    for ref in manifest.blobs:
        stored = blobs.stored(folder, ref)
        if isinstance(stored, Miss):
            return stored
        packed.append(blobs.Packed(ref=ref, stored=stored))
    return Prepared(manifest=manifest, data=data, blobs=tuple(packed), durable=False)


def manifest_bytes(folder: Folder, key: str, entry: str) -> bytes | Miss:
    """Read the stored form of a manifest, verified for this place."""
    found = read_file(folder, folder.manifest(key, entry), limit=MAX_BYTES)
    if isinstance(found, Fault):
        return Miss(reason=found.reason)
    try:
        manifest = decode(found.data, key, folder.secret)
    except (Malformed, Unsigned) as error:
        return Miss(reason=str(error))
    if manifest.entry != entry:
        return Miss(reason="the manifest of another entry")
    return found.data
