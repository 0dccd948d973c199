"""Results that say they need a gradient, though nothing can compute one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_C: Any = torch._C


def writes_to(tensor: torch.Tensor) -> int:
    """How often a tensor, or another one on its memory, was written to. Not for inference mode."""
    return tensor._version


def without_backward(
    message: str, count: int
) -> Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]:
    """A function that gives `count` tensors anew, over the same memory, as results of a call.

    In grad mode, what the function returns has `requires_grad`, and a backward through it raises
    RuntimeError with the message.
    """
    delayed = _C._functions.DelayedError(message.encode(), count + 1)
    anchor = torch.empty(0, requires_grad=True)  # what it is given besides needs no gradient

    def give(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        plain = (tensor.detach() if tensor.requires_grad else tensor for tensor in tensors)
        given: Sequence[torch.Tensor] = delayed(anchor, *plain)
        return given[1:]

    return give
