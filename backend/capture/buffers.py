"""Static input buffers: memory of a captured graph that a call's tensors are copied into."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from npugx_cache.backend.capture.outputs import extent_of
from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Sequence


class Buffer(NamedTuple):
    """`tensor` is what the graph uses in the place of the input at `position`.

    back: what the graph writes to it is copied back to the input. extent: the number of elements
    between the first and the last one of a tensor that holds one element at several indices
    (`expand`), 0 for all others: torch refuses to copy into such a tensor, so the memory behind it
    is copied.
    """

    position: int
    tensor: torch.Tensor
    back: bool
    extent: int

    @classmethod
    def like(
        cls, position: int, tensor: torch.Tensor, *, back: bool, device: str | None = None
    ) -> Buffer:
        """Memory of the same sizes and strides as a tensor: an operator may look at them.

        device: where it is, if not where the tensor is.
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
    """Copy tensors of the CPU into buffers on the device, as the program would: it waits."""
    for buffer in buffers:
        given = _memory(inputs[buffer.position], buffer.extent)
        _memory(buffer.tensor, buffer.extent).copy_(given)


def write_back(buffers: Sequence[Buffer], inputs: Sequence[torch.Tensor]) -> None:
    """Copy what a replay has written to the buffers to the inputs, on the current stream."""
    if buffers:
        into = [_memory(inputs[buffer.position], buffer.extent) for buffer in buffers]
        given = [_memory(buffer.tensor, buffer.extent) for buffer in buffers]
        runtime.copy_each(into, given, non_blocking=True)


def _memory(tensor: torch.Tensor, extent: int) -> torch.Tensor:
    if not extent:
        return tensor
    return tensor.as_strided((extent,), (1,), tensor.storage_offset())


def may_overlap_itself(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two indices may mean the same element; True where that is hard to tell."""
    reach = 0
    for step, length in sorted((s, n) for n, s in zip(size, stride, strict=True) if n > 1):
        if step <= reach:
            return True
        reach += (length - 1) * step
    return False
