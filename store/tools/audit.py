"""Reads everything in a store and reports what is damaged: `npugx-cache verify`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npugx_cache.store.content import blobs
from npugx_cache.store.content.entries import Entry, load_all
from npugx_cache.store.content.files import quarantine
from npugx_cache.store.format.layout import is_digest, is_shard, listdir
from npugx_cache.store.format.manifest import BlobRef
from npugx_cache.store.format.plain import Malformed
from npugx_cache.store.results import Miss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npugx_cache.store.format.layout import Folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """A file that can't be used. `repaired`: the file was moved to quarantine."""

    path: str
    reason: str
    repaired: bool = False


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    entries: int = 0
    blobs: int = 0
    size: int = 0
    bad: list[Bad] = field(default_factory=list)


def verify(folder: Folder, *, repair: bool) -> VerifyReport:
    """Verify every manifest and blob; the caller passes a read-only `folder` unless `repair`.

    `repair` moves a damaged file to quarantine, and also a manifest whose blob is damaged or
    missing, so that the next publish of the entry writes both again. A file that is only not
    trusted, or can't be read at the moment, stays.
    """
    report = VerifyReport()
    known: dict[str, str | None] = {}
    for item in load_all(folder):
        if isinstance(item, Entry):
            _verify_entry(folder, item, known, report, repair=repair)
        else:
            path = folder.manifest(item.key, item.entry) if item.entry else folder.key(item.key)
            _note(folder, path, item.reason, report, repair=repair)
    for digest, size in _unnamed(folder, known):
        ref = BlobRef(name="", sha256=digest, stored_size=size, logical_size=size, codec="raw")
        _verify_blob(folder, ref, known, report, repair=repair)
    return report


def _verify_entry(
    folder: Folder,
    item: Entry,
    known: dict[str, str | None],
    report: VerifyReport,
    *,
    repair: bool,
) -> None:
    report.entries += 1
    report.size += item.status.st_size
    manifest = item.manifest
    faults = [
        (ref, _verify_blob(folder, ref, known, report, repair=repair)) for ref in manifest.blobs
    ]
    for ref, fault in faults:
        if fault is None:
            continue
        path = folder.manifest(manifest.key, manifest.entry)
        reason = f"its blob {ref.name} is unusable: {fault}"
        # Only a fault that stays: a blob that can't be read just now may be readable tomorrow.
        gone = not blobs.is_there(folder, ref) or "does not decompress" in fault
        if repair and gone:
            quarantine(folder, path, reason, None)
        _note(folder, path, reason, report, repair=repair)
        return


def _verify_blob(
    folder: Folder,
    ref: BlobRef,
    known: dict[str, str | None],
    report: VerifyReport,
    *,
    repair: bool,
) -> str | None:
    """Return why a blob is unusable, or None. An intact file is read only once."""
    if ref.sha256 in known and known[ref.sha256] is None:
        return None
    if ref.sha256 not in known:
        report.blobs += 1
    try:
        data = blobs.read(folder, ref)
    except Malformed as error:
        return str(error)
    except MemoryError:
        return "not enough memory"
    if not isinstance(data, Miss):
        known[ref.sha256] = None
        report.size += ref.stored_size
        return None
    if ref.sha256 not in known:
        known[ref.sha256] = data.reason
        if "ENOENT" in data.reason:  # the blob is missing: the manifest is bad, not a blob
            report.blobs -= 1
            return data.reason
        _note(folder, folder.blob(ref.sha256), data.reason, report, repair=repair)
    return data.reason


def _note(folder: Folder, path: str, reason: str, report: VerifyReport, *, repair: bool) -> None:
    gone = False
    if repair:
        try:
            folder.tree.lstat(path)
        except OSError:
            gone = True
    report.bad.append(Bad(path=path, reason=reason, repaired=gone))


def _unnamed(folder: Folder, known: dict[str, str | None]) -> Iterator[tuple[str, int]]:
    for shard in filter(is_shard, listdir(folder, folder.part("cas"))):
        for name in listdir(folder, folder.part(f"cas/{shard}")):
            if is_digest(name) and name not in known:
                with contextlib.suppress(OSError):
                    yield name, folder.tree.lstat(folder.blob(name)).st_size
