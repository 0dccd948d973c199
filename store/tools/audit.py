"""Reads everything in a store and reports what is damaged: `npugx-cache verify`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npugx_cache.store.content import blobs
from npugx_cache.store.content.entries import Entry, load_all
from npugx_cache.store.content.files import quarantine
from npugx_cache.store.format.layout import is_digest, listdir, shards
from npugx_cache.store.format.manifest import BlobRef
from npugx_cache.store.format.plain import Malformed

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
    audit = _Audit(folder, repair=repair)
    for item in load_all(folder):
        if isinstance(item, Entry):
            audit.verify_entry(item)
        else:
            path = folder.manifest(item.key, item.entry) if item.entry else folder.key(item.key)
            audit.note(path, item.reason)
    for ref in audit.unnamed_blobs():
        audit.verify_blob(ref)
    return audit.report


class _Audit:
    """What was found so far. `_known`: why each blob that was read is unusable, or None."""

    def __init__(self, folder: Folder, *, repair: bool) -> None:
        self._folder, self._repair = folder, repair
        self._known: dict[str, str | None] = {}
        self.report = VerifyReport()

    def verify_entry(self, item: Entry) -> None:
        self.report.entries += 1
        self.report.size += item.status.st_size
        manifest = item.manifest
        faults = [(ref, self.verify_blob(ref)) for ref in manifest.blobs]
        for ref, fault in faults:
            if fault is None:
                continue
            path = self._folder.manifest(manifest.key, manifest.entry)
            reason = f"its blob {ref.name} is unusable: {fault}"
            # Only a fault that stays: a blob that can't be read just now may be readable tomorrow.
            gone = not blobs.is_there(self._folder, ref) or "does not decompress" in fault
            if self._repair and gone:
                quarantine(self._folder, path, reason, None)
            self.note(path, reason)
            return

    def verify_blob(self, ref: BlobRef) -> str | None:
        """Return why a blob is unusable, or None. An intact file is read only once."""
        known = self._known
        if ref.sha256 in known and known[ref.sha256] is None:
            return None
        if ref.sha256 not in known:
            self.report.blobs += 1
        try:
            missing = blobs.check(self._folder, ref)
        except Malformed as error:
            return str(error)
        except MemoryError:
            return "not enough memory"
        if missing is None:
            known[ref.sha256] = None
            self.report.size += ref.stored_size
            return None
        if ref.sha256 not in known:
            known[ref.sha256] = missing.reason
            if "ENOENT" in missing.reason:  # the blob is missing: the manifest is bad, not a blob
                self.report.blobs -= 1
                return missing.reason
            self.note(self._folder.blob(ref.sha256), missing.reason)
        return missing.reason

    def note(self, path: str, reason: str) -> None:
        repaired = self._repair and not self._folder.has(path)
        self.report.bad.append(Bad(path=path, reason=reason, repaired=repaired))

    def unnamed_blobs(self) -> Iterator[BlobRef]:
        """The blobs that no entry names."""
        folder = self._folder
        for shard in shards(folder, "cas"):
            for name in listdir(folder, folder.part(shard)):
                if is_digest(name) and name not in self._known:
                    with contextlib.suppress(OSError):
                        size = folder.tree.lstat(folder.blob(name)).st_size
                        yield BlobRef("", name, size, size, "raw")
