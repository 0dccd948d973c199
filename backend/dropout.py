"""Dropout that drops nothing gives the tensor that it was given, as in eager.

Under a trace torch gives a copy, so a later write to the result would not reach the tensor, which
the function may still read. Importing this module loads torch alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from npugx_cache.private.runtime import is_wrapper

if TYPE_CHECKING:
    from collections.abc import Callable


def _of_functional(
    input: torch.Tensor,  # noqa: A002 - callers name it
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    if _drops_nothing(input, p, training):
        return input
    return functional.dropout(input, p, training, inplace)


def _of_torch(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:  # noqa: A002
    return input if _drops_nothing(input, p, train) else torch.dropout(input, p, train)


def _drops_nothing(input: torch.Tensor, p: float, train: bool) -> bool:  # noqa: A002
    """As ATen's `Dropout.cpp` asks; code of a class that holds tensors decides by itself."""
    return (p == 0 or not train) and not is_wrapper(input)


_FORMS: dict[Any, Callable[..., Any]] = {
    functional.dropout: _of_functional,
    torch.dropout: _of_torch,
    torch.ops.aten.dropout: _of_torch,
    torch.ops.aten.dropout.default: _of_torch,
}


def eager_form(target: Any) -> Callable[..., Any] | None:
    """The function that does what eager does for a call of dropout; None for any other call."""
    return _FORMS.get(target) if callable(target) else None
