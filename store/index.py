"""Index: what a listing shows of every entry, so that `ls` reads 256 values and not all manifests.

Derived, host-local, one value per shard. A value is valid while the shard folder has the mtime it
had when the value was made, and had not changed just before that (git's "racy" rule: a change
within the clock's grain leaves no trace). Whoever changes a key folder touches its shard.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from npugx_cache.store import syscalls
from npugx_cache.store.columns import Columns, Row, pack_rows
from npugx_cache.store.derived import Derived, debug
from npugx_cache.store.entries import Entry, load
from npugx_cache.store.layout import is_digest, is_key, is_shard, listdir
from npugx_cache.store.plain import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from npugx_cache.store.layout import Folder
    from npugx_cache.store.plain import Plain
    from npugx_cache.store.results import Refused

RACY_NS = 5_000_000_000
_BLOCK = 512
_VERSION = 1
_ABOUT = ("function", "signature", "reason", "environment")


@dataclass(slots=True, kw_only=True)
class Overview:
    """What lies in a store. `disk_bytes` is what the file system counts, `size` the file sizes."""

    columns: Columns = field(default_factory=Columns)
    refused: list[Refused] = field(default_factory=list)
    blobs: int = 0
    size: int = 0
    disk_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class _Shard:
    """One value of the index: of manifests (`part`, `stamps`) or of blobs (only counted).

    A stamp is the file that a row was read from: inode, mtime and size.
    """

    mtime: int
    count: int = 0
    size: int = 0
    blocks: int = 0
    part: Mapping[str, Plain] = field(default_factory=dict)
    stamps: bytes = b""
    refused: list[Refused] = field(default_factory=list)


class Index:
    """The index of one store. Whatever is wrong with it, the answer comes from the store."""

    def __init__(self, folder: Folder, state: Path | None = None) -> None:
        self._folder = folder.look_only("a listing changes nothing")
        # What is listed depends on whose signature counts.
        secret = hashlib.sha256(folder.secret or b"").hexdigest()[:16]
        mark = f"\0{folder.trust}\0{secret}"
        self._derived = Derived("index", folder.root, state=state, mark=mark)

    def overview(self) -> Overview:
        known = self._load()
        answer = Overview()
        fresh: dict[str, _Shard] = {}
        present: set[str] = set()
        for part in ("ac", "cas"):
            for name in filter(is_shard, listdir(self._folder.part(part))):
                where = f"{part}/{name}"
                present.add(where)
                shard = self._shard(where, known.get(where), fresh)
                if part == "ac":
                    answer.columns.add(shard.part)
                    answer.refused.extend(shard.refused)
                else:
                    answer.blobs += shard.count
                answer.size += shard.size
                answer.disk_bytes += shard.blocks * _BLOCK
        self._save(fresh, known.keys() - present)
        return answer

    def _shard(self, where: str, known: _Shard | None, fresh: dict[str, _Shard]) -> _Shard:
        """Return a shard as it is now, from the index where that is still true."""
        path = self._folder.part(where)
        try:
            mtime = syscalls.lstat(path).st_mtime_ns
        except OSError:
            return _Shard(mtime=0)
        if known is not None and known.mtime == mtime:
            return known
        started = time.time_ns()
        if where.startswith("cas/"):
            shard = self._count_blobs(path, mtime)
        else:
            shard = self._read_entries(path, mtime, known)
        # A change right after this scan could leave the same mtime: not kept. Nor is a file that
        # could not be read, which may be readable next time.
        if not shard.refused and abs(started - mtime) > RACY_NS:
            fresh[where] = shard
        return shard

    def _count_blobs(self, path: str, mtime: int) -> _Shard:
        shard = _Shard(mtime=mtime)
        for name in filter(is_digest, listdir(path)):
            with contextlib.suppress(OSError):
                status = syscalls.lstat(f"{path}/{name}")
                shard.count += 1
                shard.size += status.st_size
                shard.blocks += status.st_blocks
        return shard

    def _read_entries(self, path: str, mtime: int, known: _Shard | None) -> _Shard:
        shard = _Shard(mtime=mtime)
        before = _by_stamp(known)
        rows: list[Row] = []
        stamps: list[Plain] = []
        for key in listdir(path):
            if not is_key(key) or not path.endswith(key[:2]):
                continue
            for name in filter(is_digest, listdir(f"{path}/{key}")):
                try:
                    status = syscalls.lstat(f"{path}/{key}/{name}")
                except OSError:
                    continue
                stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
                row = before.get((key, name, *stamp)) or self._read_entry(shard, key, name)
                if row is None:
                    continue
                rows.append(row)
                stamps.append(list(stamp))
                shard.size += status.st_size
                shard.blocks += status.st_blocks
        shard.part, shard.stamps = pack_rows(rows), pack(stamps)
        return shard

    def _read_entry(self, shard: _Shard, key: str, name: str) -> Row | None:
        found = load(self._folder, key, name)
        if isinstance(found, Entry):
            return _row(found)
        shard.refused.append(found)
        return None

    def _load(self) -> dict[str, _Shard]:
        shards: dict[str, _Shard] = {}
        for name, value in self._derived.rows():
            try:
                shards[name] = _decode(value)
            except (TypeError, ValueError, IndexError, KeyError) as error:
                debug(f"index of {name!r} dropped: {error!r}")
        return shards

    def _save(self, fresh: dict[str, _Shard], gone: set[str]) -> None:
        if not fresh and not gone:
            return
        with (
            self._derived.harmless("storing"),
            self._derived.opened() as cache,
            cache.transact(),
        ):
            for name, shard in fresh.items():
                cache.set(name, _encode(shard))
            for name in gone:
                cache.delete(name)


def _by_stamp(known: _Shard | None) -> dict[tuple[object, ...], Row]:
    if known is None:
        return {}
    columns = Columns()
    columns.add(known.part)
    stamps = cast("list[list[int]]", unpack(known.stamps))
    return {
        (row.key, row.entry, *stamp): row for row, stamp in zip(columns.rows(), stamps, strict=True)
    }


def _row(found: Entry) -> Row:
    manifest = found.manifest
    texts = (manifest.about.get(name) for name in _ABOUT)
    return Row(
        manifest.entry,
        manifest.key,
        manifest.identity,
        manifest.kind,
        manifest.created,
        manifest.cost_seconds,
        found.size + sum(ref.stored_size for ref in manifest.blobs),
        found.mtime,
        *(text if isinstance(text, str) else "" for text in texts),
    )


def _encode(shard: _Shard) -> bytes:
    # A check sum, because SQLite has none: a flipped bit must not become an entry that is none.
    counts = [shard.mtime, shard.count, shard.size, shard.blocks]
    body = pack([_VERSION, counts, shard.part, shard.stamps])
    return zlib.crc32(body).to_bytes(4, "big") + body


def _decode(value: bytes) -> _Shard:
    data = unpack(value)
    if not isinstance(data, bytes) or zlib.crc32(data[4:]).to_bytes(4, "big") != data[:4]:
        raise ValueError("damaged")
    version, counts, part, stamps = cast("list[Any]", unpack(data[4:]))
    if version != _VERSION:
        raise ValueError("of another version")
    mtime, count, size, blocks = counts
    return _Shard(mtime=mtime, count=count, size=size, blocks=blocks, part=part, stamps=stamps)
