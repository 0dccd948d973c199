"""What a graph was specialised on for one tensor input, ready to be compared with live tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from npugx_cache._compat import runtime
from npugx_cache.guards.tree import TensorFact
from npugx_cache.portable import decode


class LiveTensorFact(NamedTuple):
    """A `TensorFact` with torch's own objects in it."""

    type: int
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    dispatch_keys: int
    size: tuple[int | None, ...]
    stride: tuple[int | None, ...]
    static: bool
    marks: dict[str, frozenset[int]]

    @classmethod
    def of(cls, *fields: Any) -> LiveTensorFact:
        fact = TensorFact(*fields)
        return cls(
            fact.type,
            decode(["torch", fact.dtype]),
            torch.device(fact.device),
            fact.requires_grad,
            fact.dispatch_keys,
            fact.size,
            fact.stride,
            None not in fact.size and None not in fact.stride,
            {name: frozenset(dims) for name, dims in fact.marks},
        )

    def layout_matches(self, value: torch.Tensor) -> bool:
        if self.static:
            return value.shape == self.size and value.stride() == self.stride
        return (
            value.dim() == len(self.size)
            and all(
                want is None or want == n for want, n in zip(self.size, value.shape, strict=True)
            )
            and all(
                want is None or want == n
                for want, n in zip(self.stride, value.stride(), strict=True)
            )
        )

    def marks_match(self, value: torch.Tensor) -> bool:
        """A tensor may ask for fewer dynamic dimensions than were traced, never for others."""
        live = value.__dict__
        if not live:
            return True
        return all(
            live[name] <= self.marks.get(name, frozenset())
            for name in runtime.DIMENSION_MARKS
            if name in live
        )
