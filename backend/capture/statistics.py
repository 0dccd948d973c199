"""Logs statistics of the inputs and outputs of a graph at DEBUG."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.backend.capture.outputs import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npugx_cache.backend.capture.device import Device

logger = logging.getLogger("npugx_cache")


def recording(run: Callable[..., Any], title: str, devices: Sequence[Device]) -> Callable[..., Any]:
    """Wrap `run`: log minimum, maximum, norm and mean of its inputs and outputs at each call.

    The values are read from the device, so each call waits for the device. Nothing is logged while
    a capture is in progress, because a capture can't wait.
    """
    serial = itertools.count(1)

    def recorded(*inputs: Any) -> Any:
        if not logger.isEnabledFor(logging.DEBUG) or any(d.is_capturing() for d in devices):
            return run(*inputs)
        call = next(serial)
        _log(title, call, "input", inputs)  # before the call: it may write to them
        returned = run(*inputs)
        _log(title, call, "output", returned)
        return returned

    return recorded


def _log(title: str, call: int, what: str, values: Any) -> None:
    for index, tensor in enumerate(tensors_in(values)):
        logger.debug("%s: call %d: %s %d: %s", title, call, what, index, describe(tensor))


def describe(tensor: torch.Tensor) -> str:
    """Describe a tensor in one line: dtype, shape, and statistics in double precision."""
    kind = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    if not tensor.numel():
        return f"{kind} empty"
    with torch.no_grad():
        values = (tensor.detach().abs() if tensor.is_complex() else tensor.detach()).cpu().double()
        low, high = values.min().item(), values.max().item()
        norm, mean = values.norm().item(), values.mean().item()
    return f"{kind} min={low:.6g} max={high:.6g} norm={norm:.6g} mean={mean:.6g}"
