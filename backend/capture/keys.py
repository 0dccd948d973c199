"""Computes, from the inputs of a call, the key of the captured graph that can replay the call."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npugx_cache.backend.capture.layout import Role
from npugx_cache.backend.capture.outputs import Spans, span_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from npugx_cache.backend.capture.layout import Layout
    from npugx_cache.backend.options import Options

_serial = itertools.count()


class Key(NamedTuple):
    """What one captured graph is valid for.

    program: the serial number of the program in this process.
    sizes: the inputs that are numbers, and the sizes, strides and dtypes of those tensors whose
    sizes or strides may differ between calls.
    places: position and address of every input that the graph uses in place.
    surroundings: the inference mode of the thread, and the state of the device and its streams.
    """

    program: int
    sizes: tuple[Hashable, ...]
    places: tuple[tuple[int, int], ...]
    surroundings: Hashable

    @property
    def shape(self) -> tuple[int, tuple[Hashable, ...]]:
        return self.program, self.sizes


class Keys:
    """Makes the keys of one program's calls. Not thread-safe.

    A graph uses the inputs that it writes to in place, so that a KV cache is not copied at each
    call. An input whose address changes at every call is called *adrift*: from then on it is copied
    into a buffer, and copied back after the replay if the graph writes to it.
    """

    def __init__(self, layout: Layout, options: Options) -> None:
        trusted = set()  # roles of inputs whose addresses are not checked at a replay
        if options.frozen_parameter:
            trusted.add(Role.PARAMETER)
        if options.unsafe_skip_npugraph_capture_validation:
            trusted.add(Role.WRITTEN)
        fixed = {Role.PARAMETER, Role.PLACED, Role.WRITTEN} - trusted
        if not options.clone_input:
            fixed.add(Role.TENSOR)
        self.program = next(_serial)
        self.written = layout.positions(Role.WRITTEN)
        self.kept = layout.positions(*trusted)
        self.copied = layout.positions(Role.TENSOR) if options.clone_input else ()
        self._numbers = layout.positions(Role.NUMBER)
        self.values = layout.positions(Role.VALUE)
        self.lengths = layout.positions(Role.LENGTH)
        self.tables = layout.positions(Role.LENGTHS)
        self.hosted = layout.positions(Role.HOST)
        self._shaped = layout.shaped
        self._fixed = layout.positions(*fixed)
        self._movable = frozenset(layout.positions(Role.TENSOR, Role.WRITTEN)) & {*self._fixed}
        self._tensors = tuple(sorted({*self._fixed, *self.kept, *self.copied}))
        self._watches_overlaps = bool(self.copied and Role.WRITTEN in fixed and self.written)
        self._adrift: dict[tuple[Hashable, ...], frozenset[int]] = {}
        self._spans: tuple[Hashable, Spans] = (None, Spans(()))

    def of(self, inputs: Sequence[Any], state: Hashable) -> Key:
        sizes = (
            *(_number(inputs[i]) for i in self._numbers),
            *(_number(inputs[i].item()) for i in self.values),
            *((t.shape, t.stride(), t.dtype) for t in (inputs[i] for i in self._shaped)),
        )
        fixed: Sequence[int] = self._fixed
        if sizes in self._adrift:
            adrift = self._alone(self._adrift[sizes], inputs)
            fixed = [position for position in fixed if position not in adrift]
        places = tuple((i, inputs[i].data_ptr()) for i in fixed)
        if self._watches_overlaps:
            places += tuple((i, inputs[i].data_ptr()) for i in self._overlapping(inputs, places))
        return Key(self.program, sizes, places, (torch.is_inference_mode_enabled(), state))

    def buffered(self, key: Key) -> tuple[int, ...]:
        """Positions of the inputs for which the graph of a key has buffers."""
        in_place = {position for position, _ in key.places}
        movable = {*self.copied, *self._movable}
        return tuple(sorted(movable - in_place - {*self.kept}))

    def set_adrift(self, earlier: Key, now: Key) -> bool:
        """Mark as adrift the inputs whose address differs between two keys of one shape.

        Returns whether further inputs are adrift now.
        """
        before = dict(earlier.places)
        moved = {i for i, address in now.places if before.get(i, address) != address}
        known = self._adrift.get(now.sizes, frozenset())
        self._adrift[now.sizes] = known | (moved & self._movable)
        return self._adrift[now.sizes] != known

    def _overlapping(self, inputs: Sequence[Any], places: tuple[tuple[int, int], ...]) -> list[int]:
        """Positions of copied inputs that share memory with an input that is written to in place.

        Such an input must not be copied, because the graph must see its own writes through it.
        """
        where = (places, tuple(inputs[i].shape for i in self._shaped))
        if self._spans[0] != where:
            written = {*self.written}
            spans = (span_of(inputs[i]) for i, _ in places if i in written)
            self._spans = where, Spans(spans)
        spans_in_place = self._spans[1]
        return [i for i in self.copied if spans_in_place.meet(span_of(inputs[i]))]

    def _alone(self, positions: frozenset[int], inputs: Sequence[Any]) -> set[int]:
        """Those of the inputs at `positions` that share memory with no other input."""
        alone = set()
        for position in positions:
            others = Spans(span_of(inputs[i]) for i in self._tensors if i != position)
            if not others.meet(span_of(inputs[position])):
                alone.add(position)
        return alone


def _number(value: Any) -> Hashable:
    """A form of a number that tells 0.0 from -0.0 and 1 from True, and in which NaN equals NaN."""
    return value if type(value) is int else f"{type(value).__name__} {value!r}"
