"""Patterns that people register, for all compiles of this process after that."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from npugx_cache.errors import OptionError
from npugx_cache.portable import NotPortable, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


NPU_FUSIONS = "1"
"""Which calls `passes.npu_fusions` makes one of, and how: raised with every change of that."""


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
        """What its identity is made of, besides `facts`."""
        every = (self.search_fn, self.replace_fn, self.trace_fn, self.extra_check)
        return tuple(function for function in every if function is not None)

    def facts(self) -> str:
        inputs = [_described(value) for value in self.example_inputs]
        scalars = encode(dict(self.scalar_workaround or {}))
        return f"{inputs} {scalars!r} {self.skip_duplicates} {self.search_fn_pattern!r}"


_registered: list[Pattern] = []


def registered() -> tuple[Pattern, ...]:
    return tuple(_registered)


def register(pattern: Pattern) -> None:
    """Raises OptionError for a function that captures what has no form in another process."""
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
