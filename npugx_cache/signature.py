"""The inputs of a call in short: what orders candidates, names locks, and is shown by `ls`.

A signature decides nothing about validity; that is the guards' task.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npugx_cache.fingerprint import digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAX_LEAVES = 256
_MAX_TEXT = 400


class Signature(NamedTuple):
    """`exact` distinguishes sizes, `kind` does not, `types` no numbers and strings either.

    `text` is for people; `leaves` are the paths of all values with what `exact` is made of.
    """

    exact: str
    kind: str
    types: str
    text: str
    leaves: tuple[tuple[str, str], ...]
    device_types: frozenset[str]


def signature(frame_locals: Mapping[str, Any]) -> Signature:
    leaves = list(_leaves(frame_locals))
    exact = tuple((path, _exact(value)) for path, value in leaves)
    return Signature(
        exact=digest(f"{path}={text}" for path, text in exact),
        kind=digest(f"{path}={_kind(value)}" for path, value in leaves),
        types=digest(f"{path}={_type(value)}" for path, value in leaves),
        text=", ".join(f"{path}: {text}" for path, text in exact)[:_MAX_TEXT],
        leaves=exact,
        device_types=frozenset(_device_types(frame_locals, leaves)),
    )


def _leaves(frame_locals: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Paths and values of the arguments, through the usual containers, without modules."""
    waiting = [(name, value, 0) for name, value in reversed(list(frame_locals.items()))]
    count = 0
    while waiting and count < _MAX_LEAVES:
        path, value, depth = waiting.pop()
        inner = _children(value) if depth < 6 else None
        if inner is None:
            count += 1
            yield path, value
        else:
            waiting += [(f"{path}{step}", child, depth + 1) for step, child in reversed(inner)]


def _children(value: object) -> list[tuple[str, Any]] | None:
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return [(f"[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, dict):
        keys = (f"[{key!r}]" if isinstance(key, (str, int)) else "[?]" for key in value)
        return list(zip(keys, value.values(), strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{f.name}", getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    return None


def _exact(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{_dtype(value)}[{', '.join(map(str, value.shape))}]"
    return _kind(value)


def _kind(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{_dtype(value)} of {value.dim()} dimensions"
    if isinstance(value, torch.nn.Module):
        first = next(value.parameters(), None)
        weights = f", {_dtype(first)}" if first is not None else ""
        return f"{type(value).__qualname__} ({'train' if value.training else 'eval'}{weights})"
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
        return repr(value)[:80]
    return type(value).__qualname__


def _type(value: object) -> str:
    if type(value) in (int, float, str):
        return type(value).__name__
    return _kind(value)


def _dtype(value: torch.Tensor) -> str:
    device = "" if value.device.type == "cpu" else f" {value.device.type}"
    return f"{str(value.dtype).removeprefix('torch.')}{device}"


def _device_types(frame_locals: Mapping[str, Any], leaves: list[tuple[str, Any]]) -> Iterator[str]:
    for _, value in leaves:
        if isinstance(value, torch.Tensor):
            yield value.device.type
    for value in frame_locals.values():
        if isinstance(value, torch.nn.Module):
            first = next(value.parameters(), None)
            if first is not None:
                yield first.device.type
