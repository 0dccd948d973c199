"""What an index holds of many entries, as columns: reading them takes no step for each entry."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npugx_cache.store.plain import Plain

_IDS = ("entry", "key", "identity")
_TEXTS = ("kind", "function", "signature", "reason", "environment")
_NUMBERS = ("created", "cost_seconds", "stored_bytes", "mtime", "manifest_bytes", "blobs")
_DIGITS = 64
_DIGEST = 32


class Row(NamedTuple):
    """One entry. `function` and the texts after it are from `about`, empty where it has none.

    `stored_bytes` is of the manifest and its blobs; `blobs` counts them, each named once.
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
    """One value per column: a loop in C reads it, one object per cell would not.

    `digests` are those of all blobs, entry by entry.
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
    """The columns of many shards in one."""

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
        """The digests of all blobs, entry by entry, as many of each as its `blobs` says."""
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
