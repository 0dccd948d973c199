"""Recipe: what is compiled and how, and the factors of the fingerprint that follow from it."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npugx_cache import environment
from npugx_cache._compat import runtime
from npugx_cache.backend import patterns
from npugx_cache.errors import OptionError
from npugx_cache.portable import code_hash, digest, unwrap
from npugx_cache.source import reachable_functions
from npugx_cache.user_functions import check_function, function_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npugx_cache.backend.options import Options
    from npugx_cache.fingerprint import Named


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a function is to be compiled and checked.

    `decompositions` pairs operators with functions. `guards` says what later calls check
    (`restore.GUARDS`); entries are the same for both, so it is no factor.
    """

    function: types.FunctionType
    title: str
    backend: str
    options: Options
    dynamic: bool | None
    guards: str
    decompositions: tuple[tuple[Any, Any], ...]

    def factors(self) -> Iterator[Named]:
        """Names and values; `fingerprint.FACTORS` says what each is for."""
        yield "function", self.title
        yield "function.code", code_hash(self.function.__code__)
        yield "backend", self.backend
        yield "dynamic", repr(self.dynamic)
        for name, value in self.options.as_factors():
            yield f"option.{name}", value
        for name, function in self.options.functions():
            yield f"option.{name}", function_digest(function)
        for index, pattern in enumerate(self._patterns()):
            functions = map(function_digest, pattern.functions())
            yield f"pattern.{index}", digest([*functions, pattern.facts()])
        if self._fuses:
            yield "npu_fusions", patterns.NPU_FUSIONS
        for operator, function in self.decompositions:
            yield f"decomposition.{operator}", function_digest(function)
        if self.backend == "inductor":
            yield from environment.library_factors()

    def shaping_code(self) -> Iterator[types.CodeType]:
        """User code that runs while a graph is made, and is not traced itself."""
        every = [function for _, function in (*self.options.functions(), *self.decompositions)]
        every += [function for pattern in self._patterns() for function in pattern.functions()]
        for function in map(unwrap, every):
            plain = isinstance(function, types.FunctionType)
            called = function if plain else vars(type(function)).get("__call__")
            if isinstance(called, types.FunctionType):
                yield from (each.__code__ for each in reachable_functions(called))

    def _patterns(self) -> tuple[patterns.Pattern, ...]:
        return patterns.registered() if self._fuses else ()

    @property
    def _fuses(self) -> bool:
        return self.backend == "npugraph_ex" and self.options.pattern_fusion_pass

    @property
    def identity(self) -> str:
        """What stays the same when the function is edited: its name."""
        return digest([self.title])


def check_options(options: Options) -> Options:
    """Raises OptionError for a custom pass that has no fingerprint."""
    for name, function in options.functions():
        check_function(f"option {name!r}", function)
    return options


def check_decompositions(given: Mapping[Any, Any] | None) -> tuple[tuple[Any, Any], ...]:
    """Custom decompositions in a fixed order; raises OptionError for what has no fingerprint."""
    for operator, function in (given or {}).items():
        if runtime.operator_name(operator) is None or not callable(function):
            raise OptionError(
                "custom_decompositions maps operators (torch.ops.aten.silu.default) to functions, "
                f"not {operator!r} to {function!r}"
            )
        check_function(f"the decomposition of {operator}", function)
    return tuple(sorted((given or {}).items(), key=lambda item: str(item[0])))
