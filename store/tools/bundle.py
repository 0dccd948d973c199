"""Writes and reads bundles: entries in a tar file whose bytes depend only on the entries.

The members lie as in a store, so that plain `tar -x` makes a store as well. Blobs come first, so
that a reader that is killed leaves unused blobs at worst, and never an entry without its blobs.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from npugx_cache.store.content import blobs, publish
from npugx_cache.store.format import layout
from npugx_cache.store.format.manifest import MAX_BYTES, BlobRef, Manifest, decode, encode
from npugx_cache.store.format.plain import Malformed
from npugx_cache.store.format.signing import Unsigned
from npugx_cache.store.results import Miss

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npugx_cache.store.format.layout import Folder


_PART = 1 << 20


@dataclass(slots=True, kw_only=True)
class BundleReport:
    """What was written to a bundle or read from one. `refused` holds (name, reason) pairs.

    `known` counts the entries that an import found in the store already.
    """

    entries: list[Manifest] = field(default_factory=list)
    known: int = 0
    blobs: int = 0
    size: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


def pack(folder: Folder, places: Iterable[tuple[str, str]], out: IO[bytes]) -> BundleReport:
    """Write the entries at `places`, pairs of (key, entry), to `out`; refuse bad ones.

    Raises OSError of `out`.
    """
    report = BundleReport()
    wanted: list[tuple[Manifest, bytes]] = []
    for key, entry in sorted(set(places)):
        found = publish.stored_manifest(folder, key, entry)
        if isinstance(found, Miss):
            report.refused.append((entry, found.reason))
        else:
            wanted.append(found)
    refs = {ref.sha256: ref for manifest, _ in wanted for ref in manifest.blobs}
    missing: dict[str, str] = {}
    # As a stream, because a pipe has no position. The bytes are those of mode "w".
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, "CACHEDIR.TAG", io.BytesIO(layout.CACHEDIR_TAG), len(layout.CACHEDIR_TAG))
        for digest, ref in sorted(refs.items()):
            # Read twice, and never held in memory: what is wrong must not get into the bundle.
            opened = blobs.open_blob(folder, ref)
            if isinstance(opened, Miss):
                missing[digest] = opened.reason
                continue
            with opened:
                _add(tar, folder.blob(digest), opened, ref.stored_size)
            report.blobs, report.size = report.blobs + 1, report.size + ref.stored_size
        for manifest, data in wanted:
            lost = [missing[ref.sha256] for ref in manifest.blobs if ref.sha256 in missing]
            if lost:
                report.refused.append((manifest.entry, lost[0]))
                continue
            path = folder.manifest(manifest.key, manifest.entry)
            _add(tar, path, io.BytesIO(data), len(data))
            report.entries.append(manifest)
            report.size += len(data)
    return report


def _add(tar: tarfile.TarFile, name: str, data: IO[bytes], size: int) -> None:
    # A TarInfo made by hand has no owner, no time and a fixed mode: nothing but contents counts.
    member = tarfile.TarInfo(name)
    member.size = size
    tar.addfile(member, data)


def unpack(folder: Folder, source: IO[bytes], *, sign: bool) -> BundleReport:
    """Copy the entries of a bundle into the store, after verifying them as on a read.

    `sign`: the caller vouches for the bundle, so its signatures are not checked and its entries are
    signed with the store's key. Raises OSError of the store and of `source`, and
    `tarfile.TarError` if `source` is no tar file.
    """
    try:
        return _unpack(folder, source, sign=sign)
    except RecursionError:
        # tarfile calls itself for each header that only describes the next one.
        raise tarfile.ReadError("it has too many headers without a file") from None


def _unpack(folder: Folder, source: IO[bytes], *, sign: bool) -> BundleReport:
    report = BundleReport()
    new = _NewBlobs(folder)
    manifests: list[tuple[tarfile.TarInfo, str, str]] = []
    try:
        with tarfile.open(fileobj=source, mode="r:") as tar:
            for member in tar:
                match _place(member):
                    case ("cas", digest):
                        _unpack_blob(folder, tar, member, digest, new, report)
                    case ("ac", key, entry):
                        manifests.append((member, key, entry))
                    case None if member.name != "CACHEDIR.TAG" and not member.isdir():
                        report.refused.append((member.name[:200], "not a file of a cache"))
            # One sync for all files. The blobs are synced before any manifest names them.
            folder.tree.sync_filesystem()
            for member, key, entry in manifests:
                place = (key, entry)
                _unpack_manifest(folder, tar, member, place, new, sign=sign, report=report)
            folder.tree.sync_filesystem()
    finally:
        dropped = new.drop_unnamed()
        report.blobs, report.size = report.blobs - len(dropped), report.size - sum(dropped)
    return report


class _NewBlobs:
    """The blobs that one import has written, to remove those that none of its entries names.

    Without that, a bundle whose entries are refused would fill the disk until a prune.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._written: dict[str, tuple[int, int]] = {}
        self._named: set[str] = set()

    def note_write(self, digest: str) -> None:
        status = self._folder.tree.lstat(self._folder.blob(digest))
        self._written[digest] = status.st_mtime_ns, status.st_size

    def note_touch(self, digest: str) -> None:
        """Note that the bundle has a blob once more, which has just set its mtime."""
        if digest in self._written:
            self.note_write(digest)

    def name(self, manifest: Manifest) -> None:
        """Keep the blobs of an entry. Called before the entry is written."""
        self._named.update(ref.sha256 for ref in manifest.blobs)

    def drop_unnamed(self) -> list[int]:
        """Remove the other blobs; return their sizes. A blob that was touched since is in use."""
        dropped: list[int] = []
        for digest, (mtime, size) in self._written.items():
            path = self._folder.blob(digest)
            with contextlib.suppress(OSError):
                if digest in self._named or self._folder.tree.lstat(path).st_mtime_ns != mtime:
                    continue
                self._folder.tree.unlink(path)
                dropped.append(size)
        return dropped


def _place(member: tarfile.TarInfo) -> tuple[str, str] | tuple[str, str, str] | None:
    """Return where a member belongs, or None if the store itself never gives such a name.

    So no member can be written outside of the store.
    """
    parts = member.name.removeprefix("./").split("/")
    # A sparse member can claim terabytes in a few bytes.
    if not member.isreg() or member.issparse() or parts[0] != layout.VERSION:
        return None
    match parts[1:]:
        case ["cas", shard, digest] if layout.is_digest(digest) and shard == digest[:2]:
            return "cas", digest
        case ["ac", shard, key, entry] if (
            layout.is_key(key) and layout.is_digest(entry) and shard == key[:2]
        ):
            return "ac", key, entry
    return None


def _unpack_blob(
    folder: Folder,
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    digest: str,
    new: _NewBlobs,
    report: BundleReport,
) -> None:
    whole = hashlib.sha256()
    for part in _parts(tar, member):
        whole.update(part)
    if whole.hexdigest() != digest:
        report.refused.append((member.name, "digest mismatch"))
        return
    size = member.size
    ref = BlobRef(name="b", sha256=digest, stored_size=size, logical_size=size, codec="raw")
    if blobs.write_parts(folder, ref, _parts(tar, member), durable=False, changed=set()):
        new.note_write(digest)
    else:
        new.note_touch(digest)
    report.blobs, report.size = report.blobs + 1, report.size + size


def _unpack_manifest(
    folder: Folder,
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    place: tuple[str, str],
    new: _NewBlobs,
    *,
    sign: bool,
    report: BundleReport,
) -> None:
    key, entry = place
    try:
        if member.size > MAX_BYTES:
            raise Malformed(f"{member.size} bytes can't be a manifest")  # noqa: TRY301
        data = _contents(tar, member)
        manifest = decode(data, key, None if sign else folder.secret)
        if (manifest.key, manifest.entry) != (key, entry):
            raise Malformed("the manifest of another entry")  # noqa: TRY301
    except (Malformed, Unsigned) as error:
        report.refused.append((member.name, str(error)))
        return
    lost = [ref.name for ref in manifest.blobs if not blobs.is_there(folder, ref)]
    if lost:
        reason = f"its blob {lost[0]} is neither in the bundle nor in the cache"
        report.refused.append((member.name, reason))
        return
    if sign:
        data = encode(manifest, folder.secret)
    new.name(manifest)
    known = not isinstance(publish.stored_manifest(folder, key, entry), Miss)
    prepared = publish.Prepared(manifest=manifest, data=data, blobs=(), durable=False)
    publish.write(folder, prepared, lambda _: False)
    report.entries.append(manifest)
    report.known += known
    report.size += len(data)


def _parts(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    """The bytes of a member, which is not held in memory: its size may be anything."""
    opened = tar.extractfile(member)
    while opened is not None and (part := opened.read(_PART)):
        yield part


def _contents(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    opened = tar.extractfile(member)
    data = opened.read() if opened is not None else b""
    if len(data) != member.size:
        raise tarfile.ReadError(f"{member.name} ends before its size")
    return data
