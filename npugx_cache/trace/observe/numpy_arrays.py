"""Refuses arrays of NumPy's where torch does otherwise than NumPy.

Dynamo traces a function of NumPy's as one that torch has written with its own operators. These
round otherwise (`np.sin`, `np.sum`) and choose other dtypes (`np.arange(3) / 2`), so that a graph
would not have eager's bits. Served is what moves elements, and arithmetic that IEEE 754 fixes.
An array is a tensor for Dynamo, also where the code asks for an attribute that arrays lack, and
where the array leaves the function. Importing this module loads the compiler.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx
from torch._dynamo.variables.tensor import NumpyNdarrayVariable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npugx_cache.trace.observe.observation import Recorder

_VIEWS = frozenset({"getitem", "T", "transpose", "swapaxes", "moveaxis", "expand_dims", "squeeze"})
"""They give a view of the one array that they are given."""

_MOVING = frozenset({"copy", "reshape", "ravel", "concatenate", "stack"})
"""They give the elements that they are given, if all arrays are of one dtype.

Of a dense array torch and NumPy alike copy the elements, or give a view. For `flatten` torch gives
a view, and NumPy a copy: a write to the one would reach the array.
"""

_EXACT = frozenset(
    {
        *("add", "sub", "subtract", "mul", "multiply", "truediv", "divide", "true_divide"),
        *("neg", "negative", "abs", "absolute", "where"),
        *("lt", "le", "gt", "ge", "eq", "ne"),
    }
)
"""Arithmetic that gives the same bits in every library."""

_FLOATS = (torch.float32, torch.float64)
_FLOAT_NAMES = (("float32",), ("float64",))
_PLACES = {int, torch.SymInt, types.NoneType, types.EllipsisType}


class _Arrays:
    """The nodes of a graph whose values are arrays for Python; for torch they are tensors."""

    def __init__(self) -> None:
        self.nodes: set[fx.Node] = set()


_TAKING_ARRAYS = frozenset({torch.as_tensor, torch.from_numpy, torch.tensor})
"""Functions of torch that make the tensor of an array that Dynamo has."""


def note_result(recorder: Recorder, result: Any) -> None:
    """Note that the result of a call is an array, such as that of `tensor.numpy()`."""
    if isinstance(result, NumpyNdarrayVariable):
        recorder.state(_Arrays).nodes.add(result.as_proxy().node)


def note_node(recorder: Recorder, node: fx.Node) -> None:
    """Note that a call of NumPy's gives an array."""
    if _is_of_numpy(node.target):
        recorder.state(_Arrays).nodes.add(node)


def obstacle_of_name(variable: Any, name: str) -> str | None:
    """Why the code must not ask a value for an attribute; None for what is no array.

    What arrays lack and tensors have, Dynamo would give. What both lack, the caller frame would ask
    the array for, where the code no longer catches the AttributeError.
    """
    if not isinstance(variable, NumpyNdarrayVariable):
        return None
    if hasattr(np.ndarray, name) and not name.startswith("__"):
        return None
    return f"torch takes an array of NumPy's for a tensor, which is asked for {name}"


def obstacle(recorder: Recorder, target: Any, args: Any, kwargs: Mapping[str, Any]) -> str | None:
    """Why a graph can't hold a call that Dynamo made of one with arrays; None for other calls.

    What is no function of NumPy's, such as `abs(array)` or `a, b = array`, gives Dynamo tensors.
    """
    if not _is_of_numpy(target):
        nodes = recorder.state(_Arrays).nodes
        if not nodes or target in _TAKING_ARRAYS or nodes.isdisjoint(_nodes((args, kwargs))):
            return None
        return (
            f"torch takes an array of NumPy's for a tensor in {getattr(target, '__name__', target)}"
        )
    name = _name(target, args)
    operands = args[:1] if isinstance(target, types.FunctionType) else args
    if not kwargs.keys() - {"axis"} and _is_alike(name, operands):
        return None
    return f"torch may compute NumPy's {name} otherwise than NumPy"


def _is_of_numpy(target: Any) -> bool:
    """Whether it is what Dynamo puts in the place of a function, method or attribute of NumPy's."""
    home = target if isinstance(target, types.FunctionType) else type(target)
    return (home.__module__, home.__name__[:6]) == ("torch._dynamo.utils", "numpy_")


def _nodes(args: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg(args, found.append)
    return found


def obstacle_of_result(variable: Any) -> str | None:
    """Why a frame can't hand out a value; None if it can, as all that is no array.

    An array that NumPy computed owns its memory, and NumPy chooses the strides of axes with one
    element: the frame would hand out the memory of a tensor, with the strides of the tensor.
    """
    if not isinstance(variable, NumpyNdarrayVariable):
        return None
    node: Any = variable.as_proxy().node
    while _is_of_numpy(node.target):
        is_view = _name(node.target, node.args) in _VIEWS
        if not is_view or _has_short_axis(node.meta["example_value"]):
            return "an array that NumPy computed leaves the function"
        node = node.args[0]
    return None


def _has_short_axis(tensor: torch.Tensor) -> bool:
    return any(isinstance(size, int) and size < 2 for size in tensor.shape)


def _name(target: Any, args: Any) -> str:
    """The name of a method, which is an argument, or of a function or an operator."""
    is_method = isinstance(target, types.FunctionType)
    return str(args[1] if is_method else target.__name__.removeprefix("wrapped_"))


def obstacle_of_tensor(tensor: torch.Tensor, *, is_forced: bool) -> str | None:
    """Why `tensor.numpy()` gives no array, where Dynamo goes on with one; None if it gives one."""
    if tensor.is_conj() or tensor.is_neg():
        return "a tensor that is lazily conjugated or negated has no array"
    if tensor.dtype not in _DTYPES:
        return f"NumPy has no arrays of {tensor.dtype}"
    if not is_forced and tensor.device.type != "cpu":
        return f"a tensor on {tensor.device} has no array of NumPy's"
    if _has_short_axis(tensor) and tensor.stride() != tensor.new_empty(tensor.shape).stride():
        return "Dynamo changes the strides of a tensor with an axis of one element in its array"
    is_for_training = tensor.requires_grad and torch.is_grad_enabled()
    return "a tensor that requires grad has no array" if is_for_training and not is_forced else None


_DTYPES = frozenset(
    {
        *(torch.bool, torch.float16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
    }
)


def _is_alike(name: str, args: Any) -> bool:
    """Whether elements, dtype and strides of the result are those of NumPy's result."""
    arrays, others = _leaves(args)
    if not arrays or _gives_number(name, args, arrays):
        return False
    if name in _VIEWS:
        return len(arrays) == 1 and others <= _PLACES and _is_view(name, args)
    if not all(each.is_contiguous() for each in arrays):
        return False  # NumPy chooses other strides
    dtypes = {each.dtype for each in arrays}
    if name == "astype":  # to the dtype that it has, torch gives the array itself
        return args[1:] in _FLOAT_NAMES and str(*dtypes) != f"torch.{args[1]}"
    if name in _MOVING:
        return len(dtypes) == 1 and others <= _PLACES
    floats = dtypes - {torch.bool} if name == "where" else dtypes
    return name in _EXACT and len(floats) == 1 and floats <= {*_FLOATS} and others <= {int, float}


def _gives_number(name: str, args: Any, arrays: list[torch.Tensor]) -> bool:
    """Whether NumPy gives a number of its own, where Dynamo has an array without axes."""
    if name == "getitem":
        places = _places(args[1])
        return len(places) == arrays[0].dim() and {*map(type, places)} <= {int, torch.SymInt}
    return name in _EXACT and not any(each.dim() for each in arrays)


def _is_view(name: str, args: Any) -> bool:
    """Whether one of `_VIEWS` gives one in torch too: not for lists, nor for steps backwards."""
    if name != "getitem":
        return True
    places = _places(args[1])
    steps = [place.step for place in places if isinstance(place, slice)]
    return not any(isinstance(place, (list, tuple, fx.Node)) for place in places) and all(
        step is None or (isinstance(step, int) and step > 0) for step in steps
    )


def _places(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


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
