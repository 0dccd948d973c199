"""Recipe: what is compiled and how, and the factors of the fingerprint that follow from it."""

from __future__ import annotations

import types
from functools import partial
from typing import TYPE_CHECKING, Any

from npugx_cache.backend import patterns
from npugx_cache.conditions.source_facts import (
    names_in,
    reachable_functions,
    reachable_hash,
    text_or_type,
)
from npugx_cache.errors import OptionError
from npugx_cache.key import environment
from npugx_cache.portable import NotPortable, code_hash, digest, encode, unwrap
from npugx_cache.private import runtime
from npugx_cache.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from npugx_cache.backend.options import Options
    from npugx_cache.key.fingerprint import Named


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """What shapes a graph besides the code that is traced: a backend, with what it was given.

    `decompositions` pairs operators with functions.
    """

    backend: str
    options: Options
    decompositions: tuple[tuple[Any, Any], ...]

    def shaping_factors(self) -> Iterator[Named]:
        yield "backend", self.backend
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
        if self.backend == "ge":
            yield from environment.graph_engine_factors()

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Shaping):
    """How a function is to be compiled and checked.

    `guards` says what later calls check (`restore.GUARDS`), `breaks` whether a function that can't
    be one graph runs as several. Neither is a factor, because entries are the same for all of their
    values.
    """

    function: types.FunctionType
    title: str
    dynamic: bool | None
    guards: str
    breaks: bool = False

    def factors(self) -> Iterator[Named]:
        """Names and values of the factors; `fingerprint.FACTORS` says what each stands for."""
        yield "function", self.title
        yield "function.code", code_hash(self.function.__code__)
        yield "dynamic", repr(self.dynamic)
        yield from self.shaping_factors()

    @property
    def identity(self) -> str:
        """The digest of the function's name, which stays the same when the function is edited."""
        return digest([self.title])


def check_options(options: Options) -> Options:
    """Returns the options; raises OptionError for a custom pass that has no digest."""
    for name, function in options.functions():
        check_function(f"option {name!r}", function)
    return options


def check_decompositions(given: Mapping[Any, Any] | None) -> tuple[tuple[Any, Any], ...]:
    """Custom decompositions in a fixed order; raises OptionError for one that has no digest."""
    for operator, function in (given or {}).items():
        if runtime.operator_name(operator) is None or not callable(function):
            raise OptionError(
                "custom_decompositions maps operators (torch.ops.aten.silu.default) to functions, "
                f"not {operator!r} to {function!r}"
            )
        check_function(f"the decomposition of {operator}", function)
    return tuple(sorted((given or {}).items(), key=lambda item: str(item[0])))


# The digest of a custom pass or a decomposition: a user function that shapes a graph.
#
# The digest covers the code of the function, what the function captures, the user functions that it
# reaches, and the plain values of the globals that these read. It uses neither `repr` nor `id`: two
# closures with different values have two digests, and one function has the same digest in every
# process. A callable object names itself by a method `uuid()`, as torch's CustomGraphPass does.


def function_digest(function: Callable[..., Any]) -> str:
    """The digest of a user function; raises NotPortable if another process can't form the same."""
    named = getattr(function, "uuid", None)
    if callable(named):
        return digest([repr(encode(named()))])
    inner = unwrap(function)
    if (
        isinstance(function, types.BuiltinFunctionType)
        or runtime.operator_name(function) is not None
    ):
        return digest([repr(encode(function))])
    if not isinstance(function, (types.FunctionType, partial)):
        kind = type(function).__qualname__
        raise NotPortable(f"a {kind} has state: give it a method uuid() that names it")
    if not isinstance(inner, types.FunctionType):
        return digest([repr(encode(function))])
    return digest([repr(encode(function)), reachable_hash(inner), *_values(inner)])


def check_function(what: str, function: Callable[..., Any]) -> None:
    """Raises OptionError for a function that has no digest."""
    try:
        function_digest(function)
    except NotPortable as error:
        raise OptionError(f"{what} can't be part of a key: {error}") from None


def _values(function: types.FunctionType) -> Iterator[str]:
    """The values that a function and the user functions that it reaches capture or read as globals.

    Raises NotPortable if the function itself captures a value that is not portable. All other
    values that are not portable count by their type.
    """
    for each in reachable_functions(function):
        text = encode if each is function else text_or_type
        for name, cell in zip(each.__code__.co_freevars, each.__closure__ or (), strict=True):
            try:
                yield f"{name}={text(cell.cell_contents)!r}"
            except ValueError:  # the cell is empty
                continue
        for name in sorted(set(names_in(each.__code__))):
            if name in each.__globals__:
                yield f"{name}={text_or_type(each.__globals__[name])}"
