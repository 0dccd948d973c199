"""The patterns that users registered; they apply to all later compiles of this process."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from npugx_cache.errors import OptionError
from npugx_cache.portable import NotPortable, encode
from npugx_cache.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


NPU_FUSIONS = "1"
"""Version of the fusions in `passes.npu`. Raise it whenever they fuse something else than before.

The version is part of the key, so that a graph which was fused in another way is not found.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """See `npugx_cache.backend.register_replacement`."""

    search_fn: Callable[..., Any]
    replace_fn: Callable[..., Any]
    example_inputs: Sequence[Any]
    trace_fn: Callable[..., Any] | None
    extra_check: Callable[[Any], bool] | None
    search_fn_pattern: Any
    scalar_workaround: Mapping[str, Any] | None
    skip_duplicates: bool

    def arguments(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user's functions of this pattern. With `facts`, they are its part of the key."""
        every = (self.search_fn, self.replace_fn, self.trace_fn, self.extra_check)
        return tuple(function for function in every if function is not None)

    def facts(self) -> str:
        """All of the pattern's identity that is not a function, as text."""
        inputs = [_described(value) for value in self.example_inputs]
        scalars = encode(dict(self.scalar_workaround or {}))
        return f"{inputs} {scalars!r} {self.skip_duplicates} {self.search_fn_pattern!r}"


_registered: list[Pattern] = []


def registered() -> tuple[Pattern, ...]:
    return tuple(_registered)


def register(pattern: Pattern) -> None:
    """Add a pattern. Raises OptionError if a function captures a value that is not portable."""
    for function in pattern.functions():
        for cell in getattr(function, "__closure__", None) or ():
            try:
                encode(cell.cell_contents)
            except (NotPortable, ValueError) as error:
                raise OptionError(f"pattern {function!r} can't be part of a key: {error}") from None
    pattern.facts()
    _registered.append(pattern)


def _described(value: Any) -> str:
    if hasattr(value, "dtype"):
        return f"{value.dtype}{tuple(value.shape)}{tuple(value.stride())}{value.device.type}"
    return repr(encode(value))
