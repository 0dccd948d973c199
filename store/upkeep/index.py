"""The index: what listings and cleaners need to know of every entry, one value for each shard.

The index is derived data and lies on this host. A value is valid while the mtime of the shard's
folder is the same as when the value was made. The value of a shard that had just changed is not
stored, because a second change within the resolution of the clock would leave the mtime as it is
(git's "racy" rule). Whoever changes a key folder touches its shard (`layout.stamp_shard`).
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import zlib
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from npugx_cache.store.content.entries import Entry, entry_names, load, open_key
from npugx_cache.store.format.layout import is_digest, keys_of_shard, listdir, shards
from npugx_cache.store.format.plain import pack, unpack
from npugx_cache.store.io import syscalls
from npugx_cache.store.upkeep.derived import Derived, debug

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

    from npugx_cache.store.format.layout import Folder
    from npugx_cache.store.format.plain import Plain
    from npugx_cache.store.results import Refused

# The entries of a shard are stored as columns, so that reading takes no step for each entry.


_IDS = ("entry", "key", "identity")
_TEXTS = ("kind", "function", "signature", "reason", "environment")
_NUMBERS = ("created", "cost_seconds", "stored_bytes", "mtime", "manifest_bytes", "blobs")
_DIGITS = 64
_DIGEST = 32


class Row(NamedTuple):
    """One entry. `function` and the texts after it come from the manifest's `about`, or are empty.

    `stored_bytes` is the size of the manifest and its blobs; `blobs` is the number of its blobs.
    `mtime` and `manifest_bytes` are those of the manifest's file.
    """

    entry: str
    key: str
    identity: str
    kind: str
    created: float
    cost_seconds: float
    stored_bytes: int
    mtime: float
    manifest_bytes: int
    blobs: int
    function: str
    signature: str
    reason: str
    environment: str


def pack_rows(rows: list[Row], digests: list[str]) -> dict[str, Plain]:
    """Pack rows as one value for each column, because C code can read that without a Python loop.

    `digests` are the digests of all blobs, entry by entry.
    """
    packed: dict[str, Plain] = {"count": len(rows), "digests": bytes.fromhex("".join(digests))}
    cells = list(zip(*rows, strict=True)) or [()] * len(Row._fields)
    columns = dict(zip(Row._fields, cells, strict=True))
    for name in _IDS:
        values = cast("tuple[str, ...]", columns[name])
        same = set(map(len, values)) <= {_DIGITS}
        packed[name] = bytes.fromhex("".join(values)) if same else "\n".join(values)
    for name in _TEXTS:
        values = cast("tuple[str, ...]", columns[name])
        packed[name] = "\n".join([value.replace("\n", " ") for value in values])
    for name in _NUMBERS:
        packed[name] = array("d", cast("tuple[float, ...]", columns[name])).tobytes()
    return packed


class Columns:
    """The columns of several shards, joined."""

    def __init__(self) -> None:
        self._parts: list[Mapping[str, Plain]] = []
        self.count = 0

    def add(self, part: Mapping[str, Plain]) -> None:
        count = part["count"]
        if isinstance(count, int) and count > 0:
            self._parts.append(part)
            self.count += count

    def texts(self, name: str) -> list[str]:
        if name in _IDS:
            return [cell for part in self._parts for cell in _ids(part[name])]
        parts = [cast("str", part[name]) for part in self._parts]
        return "\n".join(parts).split("\n") if parts else []

    def numbers(self, name: str) -> list[float]:
        column = array("d")
        for part in self._parts:
            column.frombytes(cast("bytes", part[name]))
        return column.tolist()

    def digests(self) -> list[bytes]:
        """The digests of all blobs, entry by entry: of each entry as many as its `blobs` says."""
        return split_digests(b"".join(cast("bytes", part["digests"]) for part in self._parts))

    def rows(self) -> list[Row]:
        columns = [self._cells(name) for name in Row._fields]
        return list(map(Row._make, zip(*columns, strict=True)))

    def _cells(self, name: str) -> list[str] | list[float] | list[int]:
        if name not in _NUMBERS:
            return self.texts(name)
        numbers = self.numbers(name)
        whole = name in {"stored_bytes", "manifest_bytes", "blobs"}
        return list(map(int, numbers)) if whole else numbers


def split_digests(joined: bytes) -> list[bytes]:
    return [joined[at : at + _DIGEST] for at in range(0, len(joined), _DIGEST)]


def _ids(column: Plain) -> list[str]:
    if isinstance(column, bytes):
        digits = column.hex()
        return [digits[at : at + _DIGITS] for at in range(0, len(digits), _DIGITS)]
    return cast("str", column).split("\n")


RACY_NS = 5_000_000_000
_BLOCK = 512
_VERSION = 2
_ABOUT = ("function", "signature", "reason", "environment")
_NO_LIMIT = float("inf")


@dataclass(slots=True, kw_only=True)
class Overview:
    """What lies in a store. `size` adds up file sizes, `disk_bytes` the blocks used on the disk.

    `complete` is False if the deadline came before every shard was read.
    """

    columns: Columns = field(default_factory=Columns)
    refused: list[Refused] = field(default_factory=list)
    blobs: int = 0
    size: int = 0
    disk_bytes: int = 0
    complete: bool = True
    blob_parts: list[Mapping[str, Plain]] = field(default_factory=list)

    def blob_sizes(self) -> dict[bytes, int]:
        """Return the size of every blob, by digest."""
        return dict(zip(self._blob_names(), array("q", self._blob_cells("sizes")), strict=True))

    def blob_times(self) -> dict[bytes, float]:
        """Return the mtime of every blob, by digest."""
        return dict(zip(self._blob_names(), array("d", self._blob_cells("times")), strict=True))

    def _blob_names(self) -> list[bytes]:
        return split_digests(self._blob_cells("digests"))

    def _blob_cells(self, name: str) -> bytes:
        return b"".join([cast("bytes", part[name]) for part in self.blob_parts])


@dataclass(slots=True, kw_only=True)
class _Shard:
    """One value of the index: one shard. `part` has the columns of its manifests, or of its blobs.

    `stamps` is packed: for each row the inode, mtime and size of the file that it was read from.
    """

    mtime: int
    size: int = 0
    blocks: int = 0
    part: Mapping[str, Plain] = field(default_factory=dict)
    stamps: bytes = b""
    refused: list[Refused] = field(default_factory=list)

    def count(self, status: os.stat_result) -> None:
        self.size += status.st_size
        self.blocks += status.st_blocks


class Index:
    """The index of one store. What is missing, outdated or damaged in it is read from the store."""

    def __init__(self, folder: Folder, state: Path) -> None:
        self._folder = folder.look_only("a listing changes nothing")
        # Each trust mode and signing key has an index of its own, because both change the listing.
        secret = hashlib.sha256(folder.secret or b"").hexdigest()[:16]
        mark = f"\0{folder.trust}\0{secret}"
        self._derived = Derived("index", folder.root, state, mark=mark)

    def overview(self, *, deadline: float = _NO_LIMIT, trusting: bool = True) -> Overview:
        """Read every shard, until `deadline` (in seconds of `time.monotonic`).

        If `trusting` is False, no shard is taken from the index. A network file system may show the
        mtime that a folder had a minute ago: a listing may be that late, a cleaner may not.
        """
        known = self._load() if trusting else {}
        answer = Overview()
        fresh: dict[str, _Shard] = {}
        # Blobs before manifests: a blob that is published in between is not in the list of blobs,
        # so a cleaner can't take it for garbage.
        present = [*shards(self._folder, "cas"), *shards(self._folder, "ac")]
        for where in present:
            if time.monotonic() > deadline:
                answer.complete = False
                break
            shard = self._shard(where, known.get(where), fresh)
            answer.size += shard.size
            answer.disk_bytes += shard.blocks * _BLOCK
            if where.startswith("cas/"):
                answer.blob_parts.append(shard.part)
                answer.blobs += cast("int", shard.part["count"])
            else:
                answer.columns.add(shard.part)
                answer.refused.extend(shard.refused)
        # Stored also after the deadline, so that the next call gets further.
        self._save(fresh, known.keys() - set(present))
        return answer

    def _shard(self, where: str, known: _Shard | None, fresh: dict[str, _Shard]) -> _Shard:
        """Return a shard as it is now, from the index if that value is still valid."""
        try:
            mtime = self._folder.tree.lstat(self._folder.part(where)).st_mtime_ns
        except OSError:
            mtime = 0  # removed just now
        if known is not None and known.mtime == mtime:
            return known
        started = time.time_ns()
        if where.startswith("cas/"):
            shard = self._list_blobs(where, mtime)
        else:
            shard = self._read_entries(where, mtime, known)
        # A shard that has just changed is not stored: a further change could leave the same mtime.
        # A shard with a refused file is not stored: the file may be readable the next time.
        if not shard.refused and abs(started - mtime) > RACY_NS:
            fresh[where] = shard
        return shard

    def _list_blobs(self, where: str, mtime: int) -> _Shard:
        shard = _Shard(mtime=mtime)
        path = self._folder.part(where)
        digests: list[str] = []
        sizes, times = array("q"), array("d")
        with contextlib.suppress(OSError), self._folder.tree.place(f"{path}/") as (at, _):
            for name in listdir(self._folder, path):
                if not is_digest(name) or name[:2] != where[4:]:
                    continue
                with contextlib.suppress(OSError):
                    status = syscalls.lstat(name, at)
                    shard.count(status)
                    digests.append(name)
                    sizes.append(status.st_size)
                    times.append(status.st_mtime)
        shard.part = {
            "count": len(digests),
            "digests": bytes.fromhex("".join(digests)),
            "sizes": sizes.tobytes(),
            "times": times.tobytes(),
        }
        return shard

    def _read_entries(self, where: str, mtime: int, known: _Shard | None) -> _Shard:
        shard = _Shard(mtime=mtime)
        before = _by_stamp(known)
        rows: list[Row] = []
        digests: list[str] = []
        stamps: list[Plain] = []
        for key in keys_of_shard(self._folder, where):
            try:
                at = open_key(self._folder, key)
            except OSError:
                continue
            try:
                for name in entry_names(at):
                    with contextlib.suppress(OSError):
                        status = syscalls.lstat(name, at) if before else None
                        found = before.get((name, *_stamp(status))) if status else None
                        if found is None or status is None:
                            item = load(self._folder, key, name, at=at)
                            if not isinstance(item, Entry):
                                shard.refused.append(item)
                                continue
                            status = item.status
                            found = _row(item), [ref.sha256 for ref in item.manifest.blobs]
                        rows.append(found[0])
                        digests += found[1]
                        stamps.append(list(_stamp(status)))
                        shard.count(status)
            except OSError:
                continue
            finally:
                syscalls.close(at)
        shard.part, shard.stamps = pack_rows(rows, digests), pack(stamps)
        return shard

    def _load(self) -> dict[str, _Shard]:
        found: dict[str, _Shard] = {}
        for name, value in self._derived.rows():
            try:
                found[name] = _decode(value)
            except (TypeError, ValueError, IndexError, KeyError) as error:
                debug(f"index of {name!r} dropped: {error!r}")
        return found

    def _save(self, fresh: dict[str, _Shard], gone: set[str]) -> None:
        if not fresh and not gone:
            return
        with (
            self._derived.harmless("storing"),
            self._derived.open_database() as cache,
            cache.transact(),
        ):
            for name, shard in fresh.items():
                cache.set(name, _encode(shard))
            for name in gone:
                cache.delete(name)


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _by_stamp(known: _Shard | None) -> dict[tuple[object, ...], tuple[Row, list[str]]]:
    """Return the rows of a value, each with the digests of its blobs, by entry and stamp."""
    if known is None:
        return {}
    columns = Columns()
    columns.add(known.part)
    digests = iter([digest.hex() for digest in columns.digests()])
    stamps = cast("list[list[int]]", unpack(known.stamps))
    return {
        (row.entry, *stamp): (row, [next(digests) for _ in range(row.blobs)])
        for row, stamp in zip(columns.rows(), stamps, strict=True)
    }


def _row(found: Entry) -> Row:
    manifest, status = found
    texts = [manifest.about.get(name) for name in _ABOUT]
    return Row(
        manifest.entry,
        manifest.key,
        manifest.identity,
        manifest.kind,
        manifest.created,
        manifest.cost_seconds,
        status.st_size + sum([ref.stored_size for ref in manifest.blobs]),
        status.st_mtime,
        status.st_size,
        len(manifest.blobs),
        *[text if isinstance(text, str) else "" for text in texts],
    )


def _encode(shard: _Shard) -> bytes:
    # A checksum, because SQLite has none: a flipped bit must not show an entry that is not there.
    counts = [shard.mtime, shard.size, shard.blocks]
    body = pack([_VERSION, counts, shard.part, shard.stamps])
    return zlib.crc32(body).to_bytes(4, "big") + body


def _decode(value: bytes) -> _Shard:
    data = unpack(value)
    if not isinstance(data, bytes) or zlib.crc32(data[4:]).to_bytes(4, "big") != data[:4]:
        raise ValueError("damaged")
    version, counts, part, stamps = cast("list[Any]", unpack(data[4:]))
    if version != _VERSION:
        raise ValueError("of another version")
    mtime, size, blocks = counts
    return _Shard(mtime=mtime, size=size, blocks=blocks, part=part, stamps=stamps)
