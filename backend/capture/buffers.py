"""Input buffers: memory of a captured graph into which the tensors of each call are copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from npugx_cache.backend.capture.outputs import extent_of
from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Sequence


class Buffer(NamedTuple):
    """The graph uses `tensor` instead of the input at `position`.

    back: after a replay, the buffer is copied back to the input, because the graph writes to it.
    extent: for a tensor that holds one element at several indices (`expand`), the number of
    elements from the first to the last one in memory; 0 for other tensors. Torch refuses to copy
    into such a tensor, so we copy the memory behind it.
    """

    position: int
    tensor: torch.Tensor
    back: bool
    extent: int

    @classmethod
    def like(
        cls, position: int, tensor: torch.Tensor, *, back: bool, device: str | None = None
    ) -> Buffer:
        """A buffer with the sizes and strides of a tensor, because operators may look at these.

        device: the device of the buffer, if it differs from that of the tensor.
        """
        size, stride = tensor.shape, tensor.stride()
        extent = extent_of(tensor) if may_overlap_itself(size, stride) else 0
        made = torch.empty_strided(size, stride, dtype=tensor.dtype, device=device or tensor.device)
        return cls(position, made, back, extent)

    def nbytes(self) -> int:
        return self.tensor.untyped_storage().nbytes()


def fill(buffers: Sequence[Buffer], inputs: Sequence[torch.Tensor]) -> None:
    """Copy the inputs of a call into the buffers, on the current stream."""
    if buffers:
        into = [_memory(buffer.tensor, buffer.extent) for buffer in buffers]
        given = [_memory(inputs[buffer.position], buffer.extent) for buffer in buffers]
        runtime.copy_each(into, given, non_blocking=True)


def transfer(buffers: Sequence[Buffer], inputs: Sequence[torch.Tensor]) -> None:
    """Copy inputs from the CPU into buffers on the device. Waits for each copy, as eager does."""
    for buffer in buffers:
        given = _memory(inputs[buffer.position], buffer.extent)
        _memory(buffer.tensor, buffer.extent).copy_(given)


def write_back(buffers: Sequence[Buffer], inputs: Sequence[torch.Tensor]) -> None:
    """Copy the buffers back to the inputs, after a replay that wrote to the buffers.

    The copies run on the current stream.
    """
    if buffers:
        into = [_memory(inputs[buffer.position], buffer.extent) for buffer in buffers]
        given = [_memory(buffer.tensor, buffer.extent) for buffer in buffers]
        runtime.copy_each(into, given, non_blocking=True)


def _memory(tensor: torch.Tensor, extent: int) -> torch.Tensor:
    if not extent:
        return tensor
    return tensor.as_strided((extent,), (1,), tensor.storage_offset())


def may_overlap_itself(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two indices may mean the same element; True also in cases that are hard to tell."""
    reach = 0
    for step, length in sorted((s, n) for n, s in zip(size, stride, strict=True) if n > 1):
        if step <= reach:
            return True
        reach += (length - 1) * step
    return False
