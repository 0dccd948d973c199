"""Functions that a stored caller frame calls instead of Dynamo's. Checked on torch 2.13."""

from __future__ import annotations

import sys
import threading
import types
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.portable import ordered_keys
from npugx_cache.private import runtime
from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _attributes(target: Any) -> dict[str, Any]:
    """The attributes of an object itself, past its class; of a thread-local, those of this thread.

    An object of a class derived from `threading.local` has a `__dict__` besides, which Python never
    reads; Dynamo's own function writes there.
    """
    kind = threading.local if isinstance(target, threading.local) else object
    found: dict[str, Any] = kind.__getattribute__(target, "__dict__")
    return found


def _set_attribute_past_descriptors(target: Any, name: str, value: object) -> None:
    _attributes(target)[name] = value


def _delete_attribute_past_descriptors(target: Any, name: str) -> None:
    del _attributes(target)[name]


def tuple_iterator_getitem(iterator: Any, index: int) -> Any:
    """The item that `index + 1` calls of `next` would return. The iterator does not advance."""
    if type(iterator) is not type(iter(())):
        raise TypeError(f"expected the iterator of a tuple, not a {type(iterator).__name__}")
    state: Any = iterator.__reduce__()
    _, (items,), start = state
    return items[start + index]


def _to_numpy(value: Any) -> Any:
    """Tensors as NumPy's arrays, which share their memory, also those in a tuple or a list."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    return type(value)(map(_to_numpy, value)) if isinstance(value, (tuple, list)) else value


class Made(NamedTuple):
    """How to create a stream or an event that the traced function creates.

    Dynamo's frame would create a new one at each call; our program creates one per thread and
    keeps it.
    """

    make: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Handed(threading.local):
    objects: tuple[Any, ...] = ()


_handed = _Handed()


def _hand_over(*objects: Any) -> None:
    _handed.objects = objects


def handed_over() -> Mapping[int, Any]:
    """The streams and events that the current caller frame hands to its program, by label.

    A frame hands them over right before it calls its program. Reading them also removes them.
    """
    objects, _handed.objects = _handed.objects, ()
    return dict(enumerate(objects))


def handed_over_by_dynamo() -> Mapping[int, Any]:
    """As `handed_over`, for a program that is called by Dynamo's own frame."""
    module: Any = sys.modules["torch._dynamo.graph_bytecode_inputs"]
    references = dict(module.index_to_external_object_weakref)
    return {label: reference() for label, reference in references.items()}


DRAWS = "__gen_rand_values"
"""The beginning of the name of a frame's global that draws numbers from Python's `random`."""

FRAME_SHIMS: dict[str, types.SimpleNamespace] = {
    "torch._dynamo.utils": types.SimpleNamespace(
        call_size=torch.Tensor.size,
        call_stride=torch.Tensor.stride,
        call_storage_offset=torch.Tensor.storage_offset,
        dict_getitem=dict.__getitem__,
        list_getitem=list.__getitem__,
        dict_keys_getitem=lambda mapping, n: ordered_keys(mapping)[n],
        make_cell=types.CellType,
        object_new=object.__new__,
        iter_next=next,
        get_current_stream=torch.accelerator.current_stream,
        build_stream=lambda args, kwargs: Made(torch.Stream, args, kwargs),
        build_event=lambda args, kwargs: Made(torch.Event, args, kwargs),
        tuple_iterator_getitem=tuple_iterator_getitem,
        to_numpy_helper=_to_numpy,
        # A trace begins as if there were no mode: these are the modes that the call leaves behind.
        get_torch_function_mode_stack=runtime.function_modes,
        set_torch_function_mode_stack=runtime.add_function_modes,
        object_setattr_ignore_descriptor=_set_attribute_past_descriptors,
        object_delattr_ignore_descriptor=_delete_attribute_past_descriptors,
    ),
    # If there is an accelerator, every frame registers its current stream and the other streams and
    # events that it uses, so that the operators of the namespace "streams" find them by label.
    "torch._dynamo.graph_bytecode_inputs": types.SimpleNamespace(
        store_user_object_weakrefs=_hand_over,
        stash_graph_created_object=lambda made: made,
    ),
}
"""By module name: what a stored caller frame gets instead of that module of Dynamo.

Each function does what Dynamo's function of the same name does. A frame that uses any other
function of these modules is not stored.
"""
