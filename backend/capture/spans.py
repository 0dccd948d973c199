"""Ranges of memory that tensors occupy, and which of them overlap."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

Span = tuple[int, int]
"""The addresses of a first byte and of the one after the last."""


def extent_of(tensor: torch.Tensor) -> int:
    """The number of elements from the first to the last one in memory."""
    if not tensor.numel():
        return 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def span_of(tensor: torch.Tensor) -> Span:
    start = tensor.data_ptr()
    return start, start + extent_of(tensor) * tensor.itemsize


class Spans:
    """A set of spans, which may overlap one another."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(span for span in spans if span[0] < span[1]):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    def meet(self, span: Span) -> bool:
        start, end = span
        first = bisect_right(self._ends, start)  # those before end where this one starts, or sooner
        return start < end and first < len(self._starts) and self._starts[first] < end
