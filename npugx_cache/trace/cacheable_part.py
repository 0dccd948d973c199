"""Names the largest submodule that a failed trace did not go through, for the advice to cache that.

A model with one line that can't be traced is refused as a whole, and most of it may be one graph:
the language model of a vision-language model, say.
"""

from __future__ import annotations

import functools
import types
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy

from npugx_cache import location
from npugx_cache.private.runtime import without_torch_function
from npugx_cache.trace.stack_value import codes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from traceback import FrameSummary

_LEAST_SHARE = 0.1
"""A smaller part of the parameters is not worth a call of its own."""


class _Part(NamedTuple):
    path: str
    size: int


def advise(reason: str, frame_locals: Mapping[str, Any], stack: Iterable[FrameSummary]) -> str:
    """A reason with the name of a submodule, if it gives the advice to cache one.

    `stack`: where the trace failed, as Dynamo tells it, outermost frame first.
    """
    before, advice, after = reason.partition(location.CACHE_A_PART)
    if not advice:
        return reason
    lines = [(frame.filename, frame.lineno or 0) for frame in stack]
    models = {name: each for name, each in frame_locals.items() if isinstance(each, nn.Module)}
    whole = sum(map(_size, models.values()))
    parts = list(_parts(models.items(), functools.cache(partial(_is_in, lines))))
    best = max(parts, key=lambda part: part.size, default=_Part("", 0))
    if best.size <= _LEAST_SHARE * whole:
        return reason
    share = f"{100 * best.size / whole:.0f} % of the parameters"
    return f"{before}{advice}, such as {best.path} ({share}){after}"


def _parts(
    named: Iterable[tuple[str, nn.Module | None]], is_in: Callable[[type], bool]
) -> Iterator[_Part]:
    """The largest modules without code that the trace was in when it failed; no single layers.

    `is_in` tells whether the trace was in code of a class.
    """
    for path, module in named:
        if module is None:
            continue
        children = _children(module).items()
        free = not any(is_in(type(each)) for each in _modules(module))
        if free and children and _is_called(module):
            yield _Part(path, _size(module))
            continue
        yield from _parts([(_below(path, name), child) for name, child in children], is_in)


def _below(path: str, name: str) -> str:
    return f"{path}[{name}]" if name.isdigit() else f"{path}.{name}"


def _is_called(module: nn.Module) -> bool:
    """Whether a module has a forward, which a ModuleList has not."""
    return type(module).forward is not nn.Module.forward


def _is_in(lines: Sequence[tuple[str, int]], cls: type) -> bool:
    """Whether a line is in a method of a class of modules, or of one that it derives from."""
    return any(
        code.co_filename == file and code.co_firstlineno <= line <= _last_line(code)
        for code in _codes(cls)
        for file, line in lines
    )


def _codes(cls: type) -> Iterator[types.CodeType]:
    for each in cls.__mro__[: cls.__mro__.index(nn.Module)]:
        for member in vars(each).values():
            if isinstance(member, types.FunctionType):
                yield codes_of(member)[-1]  # what decorators run is of no class alone


def _last_line(code: types.CodeType) -> int:
    return max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)


def _modules(module: nn.Module) -> Iterator[nn.Module]:
    """A module and all below it, each once; without methods that a class may have replaced."""
    met: dict[int, nn.Module] = {}
    waiting = [module]
    while waiting:
        each = waiting.pop()
        if id(each) not in met:
            met[id(each)] = each
            waiting += [child for child in _children(each).values() if child is not None]
    return iter(met.values())


def _children(module: nn.Module) -> dict[str, nn.Module | None]:
    """The submodules; none of a module whose `__init__` has not run."""
    return vars(module).get("_modules") or {}


def _size(module: nn.Module) -> int:
    """The number of elements of all parameters; of lazy ones nobody knows it yet."""
    tables = [vars(each).get("_parameters") or {} for each in _modules(module)]
    held = [parameter for table in tables for parameter in table.values()]
    known = {id(each): each for each in held if each is not None and not is_lazy(each)}
    with without_torch_function():
        return sum(each.numel() for each in known.values())
