"""Refuses what torch computes otherwise than NumPy: functions of arrays, in the middle of a trace.

Dynamo traces a function of NumPy's as one that torch has written with its own operators. These
round otherwise (`np.sin`, `np.sum`) and choose other dtypes (`np.arange(3) / 2`), so that a graph
would not have eager's bits. Served is what moves elements, and arithmetic that IEEE 754 fixes.
Importing this module loads the compiler.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

if TYPE_CHECKING:
    from collections.abc import Mapping

_VIEWS = frozenset({"getitem", "T", "transpose", "swapaxes", "moveaxis", "expand_dims", "squeeze"})
"""They give a view of the one array that they are given."""

_MOVING = frozenset({"copy", "reshape", "ravel", "flatten", "concatenate", "stack"})
"""They give the elements that they are given, if all arrays are of one dtype."""

_EXACT = frozenset(
    {
        *("add", "sub", "subtract", "mul", "multiply", "truediv", "divide", "true_divide"),
        *("neg", "negative", "abs", "absolute", "where"),
        *("lt", "le", "gt", "ge", "eq", "ne"),
    }
)
"""Arithmetic that gives the same bits in every library."""

_FLOATS = (torch.float32, torch.float64)
_PLACES = {int, torch.SymInt, types.NoneType, types.EllipsisType}


def obstacle(target: Any, args: Any, kwargs: Mapping[str, Any]) -> str | None:
    """Why a graph can't hold a call that Dynamo made of one of NumPy's; None for other calls."""
    home = target if isinstance(target, types.FunctionType) else type(target)
    if (home.__module__, home.__name__[:6]) != ("torch._dynamo.utils", "numpy_"):
        return None
    name = args[1] if home is target else target.__name__.removeprefix("wrapped_")
    if not kwargs.keys() - {"axis"} and _is_alike(name, args[:1] if home is target else args):
        return None
    return f"torch may compute NumPy's {name} otherwise than NumPy"


def _is_alike(name: str, args: Any) -> bool:
    """Whether elements, dtype and strides of the result are those of NumPy's result."""
    arrays, others = _leaves(args)
    if not arrays:
        return False
    if name in _VIEWS:
        return len(arrays) == 1 and others <= _PLACES
    if not all(each.is_contiguous() for each in arrays):
        return False  # NumPy chooses other strides
    if name == "astype":
        return args[1:] in (("float32",), ("float64",))
    dtypes = {each.dtype for each in arrays}
    if name in _MOVING:
        return len(dtypes) == 1 and others <= _PLACES
    floats = dtypes - {torch.bool} if name == "where" else dtypes
    return name in _EXACT and len(floats) == 1 and floats <= {*_FLOATS} and others <= {int, float}


def _leaves(args: Any) -> tuple[list[torch.Tensor], set[type]]:
    """The arrays, and the types of the other arguments."""
    arrays: list[torch.Tensor] = []
    others: set[type] = set()

    def look(each: Any) -> Any:
        value = each.meta.get("example_value") if isinstance(each, fx.Node) else each
        if isinstance(value, torch.Tensor):
            arrays.append(value)
        else:
            others.add(type(value))
        return each

    fx.node.map_aggregate(args, look)
    return arrays, others
