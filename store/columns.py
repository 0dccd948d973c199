"""Columns: what a listing shows of many entries, stored so that reading takes no step per entry."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npugx_cache.store.plain import Plain

_IDS = ("entry", "key", "identity")
_TEXTS = ("kind", "function", "signature", "reason", "environment")
_NUMBERS = ("created", "cost_seconds", "stored_bytes", "mtime")
_DIGITS = 64


class Row(NamedTuple):
    """One entry. The texts after `mtime` are from `about`, empty where it has no such text."""

    entry: str
    key: str
    identity: str
    kind: str
    created: float
    cost_seconds: float
    stored_bytes: int
    mtime: float
    function: str
    signature: str
    reason: str
    environment: str


def pack_rows(rows: list[Row]) -> dict[str, Plain]:
    """One value per column: a loop in C reads it, one object per cell would not."""
    packed: dict[str, Plain] = {"count": len(rows)}
    for name in _IDS:
        values = [str(getattr(row, name)) for row in rows]
        same = all(len(value) == _DIGITS for value in values)
        packed[name] = bytes.fromhex("".join(values)) if same else "\n".join(values)
    for name in _TEXTS:
        packed[name] = "\n".join(getattr(row, name).replace("\n", " ") for row in rows)
    for name in _NUMBERS:
        packed[name] = array("d", [getattr(row, name) for row in rows]).tobytes()
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

    def rows(self) -> list[Row]:
        sizes = map(int, self.numbers("stored_bytes"))
        columns = [sizes if name == "stored_bytes" else self.cells(name) for name in Row._fields]
        return list(map(Row._make, zip(*columns, strict=True)))

    def cells(self, name: str) -> list[str] | list[float]:
        return self.numbers(name) if name in _NUMBERS else self.texts(name)


def _ids(column: Plain) -> list[str]:
    if isinstance(column, bytes):
        digits = column.hex()
        return [digits[at : at + _DIGITS] for at in range(0, len(digits), _DIGITS)]
    return cast("str", column).split("\n")
