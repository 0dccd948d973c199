"""One captured graph, and how a call is replayed through it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.backend.capture.buffers import Buffer, fill, transfer, write_back
from npugx_cache.backend.capture.outputs import Spans, span_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npugx_cache.backend.capture.device import Device, Replayable
    from npugx_cache.backend.capture.keys import Key
    from npugx_cache.backend.capture.outputs import Outputs
    from npugx_cache.backend.capture.planned import Planned
    from npugx_cache.backend.capture.tasks import Recorder
    from npugx_cache.private.runtime import StorageReference


@dataclass(slots=True, eq=False)
class Tally:
    """Facts about a graph that remain readable after the graph was freed.

    planned: how another process captures the same graph. nbytes: device memory that the graph
    needs. seconds: how long its capture took.
    """

    planned: Planned
    nbytes: int
    seconds: float
    replays: int = 0


@dataclass(slots=True, eq=False)
class CapturedGraph:
    """One graph on its device.

    transfers: buffers for inputs on the CPU. written: positions of inputs that the graph writes to.
    places: memory that the graph reads or writes at its original address. kept: tensors that the
    graph keeps alive. lent: memory of results that callers get without a copy. exposed: positions
    of inputs that are copied although the caller can observe writes to them. tasks: what each
    replay updates, if anything.
    """

    key: Key
    device: Device
    graph: Replayable
    pool: Any
    buffers: tuple[Buffer, ...]
    transfers: tuple[Buffer, ...]
    outputs: Outputs
    written: tuple[int, ...]
    places: tuple[StorageReference, ...]
    kept: tuple[torch.Tensor, ...]
    tally: Tally
    tasks: Recorder | None = None
    lent: Spans = field(init=False)
    exposed: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.lent = Spans(self.outputs.lent())
        seen = {*self.written, *self.outputs.aliased}
        self.exposed = tuple(b.position for b in self.buffers if b.position in seen)

    def replay(self, inputs: Sequence[Any]) -> Any:
        """The results for a call whose key this graph has."""
        fill(self.buffers, inputs)
        transfer(self.transfers, inputs)
        self.graph.replay()
        if self.tasks is not None:
            self.tasks.replayed(inputs)
        self.tally.replays += 1
        write_back([buffer for buffer in self.buffers if buffer.back], inputs)
        if self.written:
            # A replay bypasses autograd, so we tell autograd that the inputs were written to.
            torch.autograd.graph.increment_version([inputs[i] for i in self.written])
        return self.outputs.of_call(inputs)

    def spoils(self, inputs: Sequence[Any]) -> bool:
        """Whether a replay would overwrite an input that the caller reads afterwards.

        This happens if an input lies in the memory of a result that this graph returned without a
        copy, and the input is also returned or written to. The graph's buffer does not help then,
        because the caller sees the input itself.
        """
        return any(self.lent.meet(span_of(inputs[i])) for i in self.exposed)

    @property
    def replays(self) -> int:
        return self.tally.replays

    @property
    def nbytes(self) -> int:
        return self.tally.nbytes

    @property
    def seconds(self) -> float:
        return self.tally.seconds

    def is_dead(self) -> bool:
        """Whether a tensor that the graph uses in place has been freed."""
        return any(place.expired() for place in self.places)
