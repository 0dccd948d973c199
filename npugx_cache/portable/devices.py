"""Names of devices: with an index, or "the current device of this kind".

An entry that may run on any current device says "npu:current".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    Rename = Callable[[str], str]

Plain = Any
_CURRENT = ":current"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The accelerator that an entry uses.

    `index` is None in a stored entry that may run on any current device of this kind. Otherwise the
    device of this index must be current, and `why` says what ties the entry to the index.
    """

    kind: str
    index: int | None
    why: str = ""

    @property
    def name(self) -> str:
        return self.kind + (_CURRENT if self.index is None else f":{self.index}")


def name_of(kind: str, index: int) -> str:
    return f"{kind}:{index}"


def to_current(kind: str, index: int) -> Rename:
    """A function that renames the device with this index to "the current device"."""
    return lambda name: kind + _CURRENT if name == name_of(kind, index) else name


def at(index: int | None) -> Rename:
    """A function that renames "the current device" to the device with this index (None: 0)."""

    def rename(name: str) -> str:
        is_current = name.endswith(_CURRENT)
        return name_of(name.removesuffix(_CURRENT), index or 0) if is_current else name

    return rename


def is_device(data: Plain) -> bool:
    """Whether encoded data is a device itself; a list that contains a device is not."""
    return isinstance(data, list) and data[:1] == ["device"] and len(data) == 2


def names_in(data: Plain) -> set[str]:
    """The names of all devices in encoded data, at any depth."""
    if is_device(data):
        return {str(data[1])}
    found: set[str] = set()
    for item in data if isinstance(data, (list, tuple)) else ():
        found |= names_in(item)
    return found


def rename_devices(data: Plain, rename: Rename) -> Plain:
    """Encoded data in which each name of a device is replaced by `rename` of the name."""
    if is_device(data):
        return ["device", rename(str(data[1]))]
    if isinstance(data, list):
        return [rename_devices(item, rename) for item in data]
    return data
