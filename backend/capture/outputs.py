"""Makes the results that a replay returns to the caller, from what the capture returned.

A captured graph writes its results to the same memory at every replay. A result in the graph's own
memory is copied for the caller, or lent: then it is valid until the next replay. A result that
shares memory with an input or a constant becomes a view of the input that was passed to *this*
call, or of the constant, as in eager.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_ALIGNMENT = 64


class UnsupportedOutput(Exception):
    """Raised for a result that a replay can't return as eager does; the program runs uncaptured."""


class _Maker(Protocol):
    """Makes some of the results of one call; `sources` are its inputs and the constants."""

    def make(self, sources: Sequence[Any]) -> list[torch.Tensor]: ...


class Outputs:
    """The results of one captured graph. `returned` is what the capture returned.

    clone: copy results in the graph's own memory; if False, lend them.
    aliased: positions among inputs and constants of the tensors that results are, or are views of.
    """

    def __init__(
        self,
        returned: Any,
        captured_inputs: Sequence[Any],
        constants: Sequence[torch.Tensor],
        *,
        clone: bool,
    ) -> None:
        tensors = _distinct(returned)
        self._constants = tuple(constants)
        self._makers: list[_Maker] = []
        order: list[torch.Tensor] = []
        for tensor in tensors:
            _check(tensor)
        for maker, made in _makers(tensors, [*captured_inputs, *constants], clone=clone):
            self._makers.append(maker)
            order += made
        self._places = {id(tensor): index for index, tensor in enumerate(order)}
        self._structure = _structure(returned, self._places)
        self._own = tuple(t for maker in self._makers for t in getattr(maker, "tensors", ()))
        self.aliased = {maker.source for maker in self._makers if isinstance(maker, (_Same, _View))}

    def of_call(self, inputs: Sequence[Any]) -> Any:
        """The results of the replay that was just started, for the inputs of its call."""
        sources = (*inputs, *self._constants)
        made = [tensor for maker in self._makers for tensor in maker.make(sources)]
        return _filled(self._structure, made)

    def nbytes(self) -> int:
        """The size of the graph's own memory that holds results."""
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in self._own}
        return sum(storages.values())

    def lent(self) -> list[Span]:
        """The memory of the results that are returned to callers without a copy."""
        lent = (maker for maker in self._makers if isinstance(maker, _Lent))
        return [span_of(tensor) for maker in lent for tensor in maker.tensors]


class _Slot(NamedTuple):
    place: int


def _structure(value: Any, places: dict[int, int]) -> Any:
    if isinstance(value, torch.Tensor):
        return _Slot(places[id(value)])
    if isinstance(value, (list, tuple)):
        return type(value)([_structure(item, places) for item in value])
    return value


def _filled(structure: Any, made: Sequence[torch.Tensor]) -> Any:
    if type(structure) is _Slot:
        return made[structure.place]
    if isinstance(structure, (list, tuple)):
        return type(structure)([_filled(item, made) for item in structure])
    return structure


def _distinct(value: Any) -> list[torch.Tensor]:
    """The tensor objects in a result, without duplicates."""
    return list({id(tensor): tensor for tensor in tensors_in(value)}.values())


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors among the results of a program, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def _check(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnsupportedOutput(f"it returns a {tensor.layout} tensor")
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedOutput("it returns a lazily conjugated or negated tensor")


def _makers(
    tensors: Sequence[torch.Tensor], sources: Sequence[Any], *, clone: bool
) -> Iterator[tuple[_Maker, list[torch.Tensor]]]:
    """Group results by the memory they are in; yield each group with its maker."""
    identity = {id(source): index for index, source in enumerate(sources)}
    memory = {
        source.untyped_storage().data_ptr(): index
        for index, source in enumerate(sources)
        if isinstance(source, torch.Tensor) and source.untyped_storage().nbytes()
    }
    fresh: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage().data_ptr()
        if id(tensor) in identity:
            yield _Same(identity[id(tensor)]), [tensor]
        elif storage in memory:
            yield _View.of(tensor, memory[storage], sources), [tensor]
        else:
            fresh.setdefault(storage or id(tensor), []).append(tensor)
    for group in fresh.values():
        yield _maker_of_fresh(group, clone=clone), group


def _maker_of_fresh(group: list[torch.Tensor], *, clone: bool) -> _Maker:
    if not clone:
        return _Lent(tuple(group))
    alone = group[0] if len(group) == 1 else None
    if alone is not None and torch.empty_like(alone).stride() == alone.stride():
        return _Copy((alone,))
    return _Region.of(group)


class _Same(NamedTuple):
    """An input or a constant itself."""

    source: int

    def make(self, sources: Sequence[Any]) -> list[torch.Tensor]:
        return [sources[self.source]]


class _View(NamedTuple):
    """A view of an input or a constant. `shift`: bytes from its first element to the view's."""

    source: int
    shift: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor, source: int, sources: Sequence[Any]) -> _View:
        shift = _address(tensor) - _address(sources[source])
        return cls(source, shift, tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def make(self, sources: Sequence[Any]) -> list[torch.Tensor]:
        base: torch.Tensor = sources[self.source]
        if base.dtype is self.dtype:
            offset = base.storage_offset() + self.shift // base.itemsize
            return [base.as_strided(self.size, self.stride, offset)]
        start = _offset(base) + self.shift
        return [_over(base.untyped_storage(), self.dtype, start, self.size, self.stride)]


class _Copy(NamedTuple):
    """A copy of a result that shares memory with no other result."""

    tensors: tuple[torch.Tensor]

    def make(self, _: Sequence[Any]) -> list[torch.Tensor]:
        return [self.tensors[0].clone()]


class _Lent(NamedTuple):
    """New tensor objects over the graph's own memory, which the next replay overwrites."""

    tensors: tuple[torch.Tensor, ...]

    def make(self, _: Sequence[Any]) -> list[torch.Tensor]:
        return [tensor.detach() for tensor in self.tensors]


class _Region(NamedTuple):
    """One copy of a piece of memory, for results that share it.

    Also used for a single result to which `clone` would give other strides.
    """

    tensors: tuple[torch.Tensor, ...]
    memory: torch.Tensor
    starts: tuple[int, ...]

    @classmethod
    def of(cls, group: Sequence[torch.Tensor]) -> _Region:
        storage = group[0].untyped_storage()
        offsets = [_address(tensor) - storage.data_ptr() for tensor in group]
        low = min(offsets) // _ALIGNMENT * _ALIGNMENT
        high = max(start + _reach(t) for start, t in zip(offsets, group, strict=True))
        memory = _over(storage, torch.uint8, low, (high - low,), (1,))
        return cls(tuple(group), memory, tuple(offset - low for offset in offsets))

    def make(self, _: Sequence[Any]) -> list[torch.Tensor]:
        storage = self.memory.clone().untyped_storage()
        return [
            _over(storage, tensor.dtype, start, tensor.shape, tensor.stride())
            for tensor, start in zip(self.tensors, self.starts, strict=True)
        ]


def _address(tensor: torch.Tensor) -> int:
    """The address of the first element. Computed, because `data_ptr` of an empty tensor is 0."""
    return tensor.untyped_storage().data_ptr() + _offset(tensor)


def _offset(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.itemsize


def _reach(tensor: torch.Tensor) -> int:
    """The number of bytes from the first element to the end of the last one in memory."""
    return extent_of(tensor) * tensor.itemsize


def _over(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    start: int,
    size: Sequence[Any],
    stride: Sequence[Any],
) -> torch.Tensor:
    """A tensor over memory that starts `start` bytes into a storage."""
    tensor = torch.empty(0, dtype=dtype, device=storage.device)
    return tensor.set_(storage, start // dtype.itemsize, size, stride)


# --- the ranges of memory that tensors occupy, and their overlaps


Span = tuple[int, int]
"""The address of the first byte, and the address after the last byte."""


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
    """A set of spans. The spans may overlap one another."""

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
        first = bisect_right(self._ends, start)  # all spans before `first` end at `start` or before
        return start < end and first < len(self._starts) and self._starts[first] < end
