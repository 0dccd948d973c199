"""Notes: what people want to know of a program beside its calls, as data. Does not import torch.

Nothing that runs reads them: they say for each call of the graph itself what it gives, and which
line and which module of the user's it comes from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npugx_cache.portable import Plain
    from npugx_cache.portable.devices import Rename

Size = int | str
"""A size or stride; a text for one that is symbolic: `s27`, `2*s27`."""


class Given(NamedTuple):
    """An input. `dtype` is "int", "float" or "bool" for a number, whose value is `sizes[0]`."""

    dtype: str
    device: str
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]


class Column(NamedTuple):
    """A text for each call, "" for none. Few differ, so each is kept once."""

    texts: tuple[str, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Column:
        table: dict[str, int] = {}
        places = tuple(table.setdefault(text, len(table)) for text in texts)
        return cls(tuple(table), places)

    def at(self, call: int) -> str:
        return self.texts[self.places[call]]

    def to_plain(self) -> Plain:
        return [list(self.texts), list(self.places)]

    @classmethod
    def from_plain(cls, data: Any, calls: int) -> Column:
        texts, places = data
        if len(places) != calls:
            raise ValueError("notes on other calls")
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("notes: not a text")
        for place in places:
            if not isinstance(place, int) or not 0 <= place < len(texts):
                raise ValueError(f"notes: no text {place!r}")
        return cls(tuple(texts), tuple(places))


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Notes on a program.

    results: the types and sizes of what each call gives.
    lines: `package/file.py:12`, the user's line.
    modules: the module whose `forward` that line belongs to, as Dynamo names it.
    examples: of each symbolic size of an input, what it was in the call that was traced.
    """

    inputs: tuple[Given, ...]
    results: Column
    lines: Column
    modules: Column
    examples: Mapping[str, int | float] = field(default_factory=dict)

    def placed(self, rename: Rename) -> Notes:
        """The same notes with the devices of the inputs renamed."""
        inputs = (g._replace(device=rename(g.device)) if g.device else g for g in self.inputs)
        return replace(self, inputs=tuple(inputs))

    def to_plain(self) -> dict[str, Plain]:
        return {
            "inputs": [[g.dtype, g.device, list(g.sizes), list(g.strides)] for g in self.inputs],
            "results": self.results.to_plain(),
            "lines": self.lines.to_plain(),
            "modules": self.modules.to_plain(),
            "examples": dict(self.examples),
        }

    @classmethod
    def from_plain(cls, data: Any, inputs: int, calls: int) -> Notes:
        """Raises KeyError, TypeError or ValueError if `data` are no notes on so many calls."""
        if len(data["inputs"]) != inputs:
            raise ValueError("notes on other inputs")
        columns = {
            name: Column.from_plain(data[name], calls) for name in ("results", "lines", "modules")
        }
        return cls(
            inputs=tuple(
                Given(_word(dtype), _word(device), _sizes(sizes), _sizes(strides))
                for dtype, device, sizes, strides in data["inputs"]
            ),
            examples={str(name): _number(value) for name, value in dict(data["examples"]).items()},
            **columns,
        )


def _sizes(data: Any) -> tuple[Size, ...]:
    if not all(isinstance(size, (int, str)) for size in data):
        raise TypeError("notes: not a size")
    return tuple(data)


def _word(name: Any) -> str:
    """The name of a dtype or of a device; it becomes part of Python text."""
    if not isinstance(name, str) or re.fullmatch(r"[\w:.-]*", name) is None:
        raise ValueError(f"notes: {name!r} is no name")
    return name


def _number(value: Any) -> int | float:
    if not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a size")
    return value
