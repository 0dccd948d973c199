"""The sizes with which a serving engine calls a graph.

An engine compiles a graph for one size, for a range of sizes, or for all, and checks no guard
afterwards. So whatever the compiled graph relies on must be true of all these sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npugx_cache.conditions import shapes
from npugx_cache.key.symbols import Symbols

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAST = 2
"""Torch compiles for a symbolic size as if it were two or more; engines call with one as well."""


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """From `first` to `last`, both included; `last` is None for all sizes."""

    first: int
    last: int | None

    @classmethod
    def of(cls, given: Any) -> EngineSizes:
        """What an engine says: None, one size, a pair, or an object with `start` and `end`."""
        if given is None:
            return cls(_LEAST, None)
        if isinstance(given, int):
            return cls(given, given)
        first, last = (given.start, given.end) if hasattr(given, "start") else given
        return cls(int(first), int(last))

    @property
    def is_one(self) -> bool:
        return self.first == self.last

    def unmet_condition(self, inputs: Sequence[Any]) -> str | None:
        """What a lowering demands of symbolic sizes that is not true of all these, or None.

        `inputs` are the fakes that the graph was lowered with.
        """
        symbols = Symbols(inputs)
        for condition in symbols.conditions():
            said = shapes.wording(condition, symbols.names.__getitem__)
            if len(symbols.names) > 1:
                return f"the graph needs {said}, and the engine gives a range for one size only"
            if self.last is None:
                return f"the graph needs {said}, and the engine calls it with any size"
            is_true = shapes.prepare(condition)
            for size in range(max(_LEAST, self.first), self.last + 1):
                if not is_true([size]):
                    return (
                        f"the graph needs {said}, which is not true of {size}, and the engine "
                        f"calls it with {self.first} to {self.last} without a check"
                    )
        return None
