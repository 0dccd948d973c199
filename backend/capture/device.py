"""The interface of a device that can capture, and the lookup of a device by its name."""

from __future__ import annotations

import contextlib
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from npugx_cache.interpreter.forks import survive_forks
from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from contextlib import AbstractContextManager

    import torch

    from npugx_cache.backend.capture.tasks import Updates
    from npugx_cache.backend.options import Options

capturing = threading.RLock()
"""Held during every capture, because a capture uses process-wide state, such as its stream."""
survive_forks(sys.modules[__name__], "capturing")


class Replayable(Protocol):
    """A captured graph of a device."""

    def replay(self) -> None:
        """Start the graph on the current stream; does not wait for the stream."""

    def reset(self) -> None:
        """Free the graph's memory. Afterwards the graph can't be replayed."""


class Captured(NamedTuple):
    """The result of a capture.

    returned: what the program returned; every replay writes to the memory of these tensors.
    nbytes: device memory that the capture took; None if the device can't tell.
    """

    graph: Replayable
    returned: Any
    nbytes: int | None


class Device:
    """One device with its index. A capture has no effects; only replays do.

    What stands here is right for a device without streams and without settings of its own.
    """

    warm_up_calls = 0
    """How often a shape must run uncaptured before it can be captured."""

    def __init__(self, kind: str, index: int) -> None:
        self.kind, self.index = kind, index

    def current(self) -> AbstractContextManager[object]:
        """Make this the current device inside a `with` block."""
        return contextlib.nullcontext()

    def is_capturing(self) -> bool:
        """Whether somebody else is capturing on the current stream."""
        return False

    def state(self) -> Hashable:
        """The state of the current stream and of the device that is baked into a capture.

        On an NPU: the core limits of the stream, and the level of determinism.
        """
        return None

    def state_of(self, stream: Any) -> tuple[int, ...]:
        """The state of a stream that is baked into a capture. On an NPU: its core limits."""
        del stream
        return ()

    def in_state(self, stream: Any, state: tuple[int, ...]) -> AbstractContextManager[None]:
        """Put a stream into a state that `state_of` returned, inside a `with` block."""
        del stream, state
        return contextlib.nullcontext()

    def follow(self, stream: Any) -> Any:
        """Make the current stream wait for `stream`; return the current stream."""
        return stream

    def updates(self) -> Updates | None:
        """A new `Updates` for one graph; None if this device can't update captured calls."""
        return None

    def new_pool(self) -> Any:
        """A new memory pool for graphs that are replayed one after the other."""

    def capture(
        self,
        program: Callable[..., Any],
        inputs: Sequence[Any],
        *,
        written: Sequence[int],
        constants: Sequence[torch.Tensor],
        pool: Any,
        options: Options,
    ) -> Captured:
        """Capture one call of a program. The graph keeps no input alive.

        written: positions of the inputs that the program writes to. If the capture raises, the
        error is passed on and everything that the capture created is freed.
        """
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for all work on the device."""


def open_device(name: str) -> Device | None:
    """The device with a name such as "npu:0"; None if devices of this kind can't capture."""
    kind, _, index = name.partition(":")
    if kind not in KINDS:
        return None
    module = import_module(f"npugx_cache.backend.capture.{kind}")
    device: Device = module.DEVICE(kind, int(index or 0))
    return device


KINDS = ("cpu", "cuda", "npu")
