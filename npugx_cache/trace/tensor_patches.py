"""Refuses traces that use a method of torch.Tensor which user code has replaced.

Dynamo answers some methods itself, such as `len` and `size`, whatever stands under their names. It
puts others into the graph, where the replacement runs untraced, so that what that reads has no
guard. A method that user code adds under a new name is traced as any other.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

import torch

from npugx_cache import location
from npugx_cache.conditions.source_facts import SPECIAL, replaced_names
from npugx_cache.portable import unwrap

if TYPE_CHECKING:
    from collections.abc import Iterable


def refusal(codes: Iterable[types.CodeType]) -> str | None:
    """Why code that was traced can't be trusted, or None."""
    used = (SPECIAL - _SHOWN) | {name for code in codes for name in code.co_names}
    return _reason(next(filter(used.__contains__, replaced_names(torch.Tensor)), None))


def patch_reason() -> str | None:
    """Why no graph that others traced can be trusted, or None: what it calls may use a method."""
    names = (name for name in replaced_names(torch.Tensor) if name not in _SHOWN)
    return _reason(next(names, None))


def _reason(name: str | None) -> str | None:
    if name is None:
        return None
    function = unwrap(vars(torch.Tensor)[name])
    place = None
    if isinstance(function, types.FunctionType):
        code = function.__code__
        place = location.Place(code.co_filename, code.co_firstlineno, code.co_name, "")
    what = f"torch.Tensor.{name} was replaced, which is not traced as Python runs it,"
    return location.reason(what, place, "call a function of your own in its place")


_SHOWN = frozenset(
    f"__{name}__"
    for name in (
        *("repr", "str", "format", "copy", "deepcopy", "reduce", "reduce_ex"),
        *("getstate", "setstate", "getnewargs", "getnewargs_ex", "class_getitem"),
    )
)
"""What a graph can't contain: texts and copies of tensors."""
