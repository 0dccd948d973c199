"""Devices that can capture: what the runtime asks of one, and how one is found."""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from npugx_cache.forks import survive_forks

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from contextlib import AbstractContextManager

    import torch

    from npugx_cache.backend.capture.tasks import Updates
    from npugx_cache.backend.options import Options

capturing = threading.RLock()
"""Held while anything is captured: devices keep process-wide state, streams for one, meanwhile."""
survive_forks(sys.modules[__name__], "capturing")


class Replayable(Protocol):
    """A captured graph as its device has it."""

    def replay(self) -> None:
        """Run it on the current stream, which is not waited for."""

    def reset(self) -> None:
        """Give its memory back; it can't be replayed any more."""


class Captured(NamedTuple):
    """`returned` is what the program returned: memory that every replay writes to.

    nbytes: device memory that the capture took, or None where the device can't tell.
    """

    graph: Replayable
    returned: Any
    nbytes: int | None


class Device(Protocol):
    """One device, with its index. A capture runs nothing; only replays have effects."""

    kind: str
    index: int
    warm_up_calls: int
    """How often a shape runs uncaptured before it can be captured."""

    def current(self) -> AbstractContextManager[object]:
        """Make it the current device."""

    def is_capturing(self) -> bool:
        """Whether somebody else is capturing on the current stream."""

    def state(self) -> Hashable:
        """What else of the current stream a captured graph depends on."""

    def state_of(self, stream: Any) -> tuple[int, ...]:
        """The same of another stream that a graph uses."""

    def in_state(self, stream: Any, state: tuple[int, ...]) -> AbstractContextManager[None]:
        """Put a stream into a state of `state_of`, for as long as it lasts."""

    def follow(self, stream: Any) -> Any:
        """Make the current stream wait for another one; return the current stream."""

    def updates(self) -> Updates | None:
        """The updates of a new graph's tasks; None if this device can't update captured calls."""

    def new_pool(self) -> Any:
        """A memory pool for graphs that are replayed one after the other."""

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
        """Capture one call of a program; raises whatever the capture raised, and leaves nothing.

        written: positions of the inputs that the program writes to. The graph keeps no input
        alive.
        """

    def synchronize(self) -> None: ...


def open_device(name: str) -> Device | None:
    """The device of a name such as "npu:0", or None for one that can't capture here."""
    kind, _, index = name.partition(":")
    if kind not in KINDS:
        return None
    module = import_module(f"npugx_cache.backend.capture.{kind}")
    device: Device = module.DEVICE(kind, int(index or 0))
    return device


KINDS = ("cpu", "cuda", "npu")
