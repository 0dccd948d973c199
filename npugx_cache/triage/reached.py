"""Finds the tensors and plain values that can be reached from arguments and results."""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN = (int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_DEPTH = 16
_NOT_DATA = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinMethodType)
_NO_DATA_IN = ("npugx_cache", "threading", "_thread", "logging", "weakref", "_weakref")


def leaves(value: Any, name: str) -> dict[str, Any]:
    """Each tensor and plain value that `value` holds, by the path to it.

    Parameters are left out: they are large, and inference does not write to them. Of an object that
    is no container only the tensors count: transformers keeps hashes in its configurations that
    are others in each process.
    """
    return dict(_walk(value, name, set(), _DEPTH, only_tensors=False))


def _walk(
    value: Any, path: str, seen: set[int], depth: int, *, only_tensors: bool
) -> Iterator[tuple[str, Any]]:
    if value is None or isinstance(value, (bool, *_PLAIN)):
        if not only_tensors:
            yield path, value
        return
    if id(value) in seen or not depth or isinstance(value, _NOT_DATA):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        if not isinstance(value, torch.nn.Parameter):
            yield path, value
        return
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        if not only_tensors:
            yield path, f"{value.dtype}{list(value.shape)}: {value.tolist()}"
        return
    only_tensors = only_tensors or not isinstance(value, (Mapping, Sequence))
    for part, inner in _parts(value):
        yield from _walk(inner, path + part, seen, depth - 1, only_tensors=only_tensors)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", inner) for key, inner in value.items() if _is_name(key))
    elif isinstance(value, Sequence):
        yield from ((f"[{at}]", inner) for at, inner in enumerate(value))
    elif isinstance(value, AbstractSet):
        return
    elif type(value).__module__.partition(".")[0] not in _NO_DATA_IN:
        yield from ((f".{key}", inner) for key, inner in getattr(value, "__dict__", {}).items())


def _is_name(key: Any) -> bool:
    return isinstance(key, (str, int))


def can_be_compared(tensor: torch.Tensor) -> bool:
    """Whether a tensor has plain memory of its own."""
    plain = type(tensor) is torch.Tensor
    return plain and tensor.layout is torch.strided and not tensor.is_quantized


def copy_to_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().cpu().clone()


def content(value: Any) -> str:
    """A short text that differs where the values differ."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if not can_be_compared(value):
        return type(value).__qualname__
    data = copy_to_host(value).contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{describe_value(value)} {hashlib.sha256(data.data).hexdigest()[:16]}"


def describe_value(value: Any) -> str:
    """Type, sizes and device of a tensor; the type of anything else."""
    if not isinstance(value, torch.Tensor):
        return type(value).__qualname__
    kind = str(value.dtype).removeprefix("torch.")
    strided = value.layout is torch.strided and not value.is_contiguous()
    strides = f", strides {list(value.stride())}" if strided else ""
    return f"{kind}{list(value.shape)} on {value.device}{strides}"
