"""Reads and writes blobs: content-addressed files, named by the SHA-256 of their stored bytes."""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from typing import IO, TYPE_CHECKING

from npugx_cache.records import NamedTuple
from npugx_cache.store.content.files import Fault, move, quarantine, read_file, stage
from npugx_cache.store.content.verified import stamp
from npugx_cache.store.format.manifest import MAX_INFLATED, BlobRef
from npugx_cache.store.format.plain import Malformed
from npugx_cache.store.io import syscalls
from npugx_cache.store.results import Miss

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npugx_cache.store.content.verified import Verified
    from npugx_cache.store.format.layout import Folder

MAX_BYTES = 1 << 40
_LEVEL = 6
_PART = 1 << 20
_WORTH = 0.9  # below this ratio, compression is worth decompressing at every hit


class Packed(NamedTuple):
    ref: BlobRef
    stored: bytes


def pack(name: str, data: bytes, *, compress: bool) -> Packed:
    """Return a blob in its stored form, compressed where that pays."""
    compress = compress and len(data) <= MAX_INFLATED
    small = zlib.compress(data, _LEVEL) if compress else data
    pays = compress and len(small) < _WORTH * len(data)
    stored = small if pays else data
    ref = BlobRef(
        name=name,
        sha256=hashlib.sha256(stored).hexdigest(),
        stored_size=len(stored),
        logical_size=len(data),
        codec="zlib" if pays else "raw",
    )
    return Packed(ref=ref, stored=stored)


def write(folder: Folder, blob: Packed, *, durable: bool, changed: set[str]) -> bool:
    """Write a blob unless an intact one is there; tell whether it was written. Raises OSError.

    Adds to `changed` the folders to sync so that the blob's name survives a power cut.
    """
    return write_parts(folder, blob.ref, (blob.stored,), durable=durable, changed=changed)


def write_parts(
    folder: Folder, ref: BlobRef, parts: Iterable[bytes], *, durable: bool, changed: set[str]
) -> bool:
    """As `write`, for a blob that is not held in memory; `parts` may be left as they are."""
    path = folder.blob(ref.sha256)
    with contextlib.suppress(OSError):
        # Touched before it is checked, because a cleaner spares files younger than its scan.
        folder.tree.touch(path)
        if _is_intact(folder, ref):
            if durable:  # whoever wrote it may not have synced it
                folder.tree.fsync(path)
                changed.add(path.rpartition("/")[0])
            return False
    changed |= move(folder, stage(folder, path, parts, durable=durable), path)
    return True


def is_there(folder: Folder, ref: BlobRef) -> bool:
    try:
        return folder.tree.lstat(folder.blob(ref.sha256)).st_size == ref.stored_size
    except OSError:
        return False


def read_stored_bytes(
    folder: Folder,
    ref: BlobRef,
    verified: Verified | None = None,
    parts: hashlib._Hash | None = None,
) -> bytes | Miss:
    """Return the stored bytes of a blob, after checking their size and digest.

    `parts`, a digest of nothing: the bytes are checked in parts, and not held or returned.
    """
    path = folder.blob(ref.sha256)
    known = refused = None
    if verified is not None:
        known, refused = verified.blob(ref.sha256), verified.refusal(ref.sha256)
    found = read_file(
        folder,
        path,
        limit=MAX_BYTES,
        size=ref.stored_size,
        known=known,
        refused=refused,
        parts_to=None if parts is None else parts.update,
    )
    if isinstance(found, Fault):
        if found.wrong_size:
            quarantine(folder, path, found.reason, found.status)
        return Miss(reason=f"blob {ref.name}: {found.reason}")
    if found.verified:
        return found.data
    if (parts or hashlib.sha256(found.data)).hexdigest() != ref.sha256:
        reason = f"digest mismatch at {path}"
        if verified is not None:
            verified.note_refusal(ref.sha256, stamp(found.status), reason)
        quarantine(folder, path, f"blob {ref.name}: {reason}", found.status)
        return Miss(reason=f"blob {ref.name}: {reason}")
    if verified is not None:
        verified.note_blob(ref.sha256, stamp(found.status))
    return found.data


def open_blob(folder: Folder, ref: BlobRef) -> IO[bytes] | Miss:
    """Open the stored bytes of a blob that were found to be right, to read them once more."""
    fault = read_stored_bytes(folder, ref, parts=hashlib.sha256())
    if isinstance(fault, Miss):
        return fault
    try:
        return syscalls.reader(folder.tree.open_read(folder.blob(ref.sha256)))
    except OSError as error:  # pruned meanwhile
        return Miss(reason=f"blob {ref.name}: {folder.explain(error)}")


def read(folder: Folder, ref: BlobRef, verified: Verified | None = None) -> bytes | Miss:
    """Return the uncompressed bytes of a blob.

    Raises `Malformed` if the stored bytes are intact and the manifest is wrong about them.
    """
    data = read_stored_bytes(folder, ref, verified)
    return data if isinstance(data, Miss) else unpack(ref, data)


def check(folder: Folder, ref: BlobRef) -> Miss | None:
    """As `read`, without keeping the uncompressed bytes: why the blob is missing, or None."""
    data = read_stored_bytes(folder, ref, parts=hashlib.sha256() if ref.codec == "raw" else None)
    if isinstance(data, Miss):
        return data
    if ref.codec == "raw":
        return None
    decompressor, left, size = zlib.decompressobj(), data, 0
    try:
        while size <= ref.logical_size and (part := decompressor.decompress(left, _PART)):
            left, size = decompressor.unconsumed_tail, size + len(part)
    except zlib.error as error:
        raise Malformed(f"blob {ref.name}: {error}") from None
    _check_inflated(ref, size, decompressor)
    return None


def _is_intact(folder: Folder, ref: BlobRef) -> bool:
    path, whole = folder.blob(ref.sha256), hashlib.sha256()
    found = read_file(folder, path, limit=MAX_BYTES, size=ref.stored_size, parts_to=whole.update)
    return not isinstance(found, Fault) and whole.hexdigest() == ref.sha256


def unpack(ref: BlobRef, data: bytes) -> bytes:
    if ref.codec == "raw":
        return data
    try:
        decompressor = zlib.decompressobj()
        # Asks for one byte more than announced, so that a stream that is too long is noticed.
        logical = decompressor.decompress(data, ref.logical_size + 1)
    except zlib.error as error:
        raise Malformed(f"blob {ref.name}: {error}") from None
    _check_inflated(ref, len(logical), decompressor)
    return logical


def _check_inflated(ref: BlobRef, size: int, decompressor: zlib._Decompress) -> None:
    if size != ref.logical_size or not decompressor.eof or decompressor.unused_data:
        raise Malformed(f"blob {ref.name} does not decompress to {ref.logical_size} bytes")
