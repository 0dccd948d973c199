"""Recipe: what is compiled and how, and the factors of the fingerprint that follow from it."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npugx_cache._compat import runtime
from npugx_cache.errors import OptionError
from npugx_cache.fingerprint import Factor, digest
from npugx_cache.portable import NotPortable, code_hash, encode
from npugx_cache.source import reachable_hash

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npugx_cache.backend.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a function is to be compiled. `decompositions` pairs operators with functions."""

    function: types.FunctionType
    title: str
    backend: str
    options: Options
    dynamic: bool | None
    decompositions: tuple[tuple[Any, Any], ...]

    def factors(self) -> Iterator[Factor]:
        yield Factor("function", self.title)
        yield Factor("function.code", code_hash(self.function.__code__))
        yield Factor("backend", self.backend)
        yield Factor("dynamic", repr(self.dynamic))
        for name, value in self.options.as_factors():
            yield Factor(f"option.{name}", value)
        for operator, function in self.decompositions:
            reached = reachable_hash(function) if isinstance(function, types.FunctionType) else ""
            value = digest([repr(encode(function)), reached])
            yield Factor(f"decomposition.{operator}", value)

    @property
    def identity(self) -> str:
        """What stays the same when the function is edited: its name."""
        return digest([self.title])


def check_decompositions(given: Mapping[Any, Any] | None) -> tuple[tuple[Any, Any], ...]:
    """Custom decompositions in a fixed order; raises OptionError for what has no fingerprint."""
    for operator, function in (given or {}).items():
        if runtime.operator_name(operator) is None or not callable(function):
            raise OptionError(
                "custom_decompositions maps operators (torch.ops.aten.silu.default) to functions, "
                f"not {operator!r} to {function!r}"
            )
        try:
            encode(function)
        except NotPortable as error:
            raise OptionError(f"the decomposition of {operator} can't be stored: {error}") from None
    return tuple(sorted((given or {}).items(), key=lambda item: str(item[0])))
