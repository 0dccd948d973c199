"""The accelerator and the number of threads that an entry needs.

An entry may say "the current device". When the entry is bound, that becomes the device that is
current then, and stays that device. In a thread with another current device, or after `set_device`,
the entry is bound once more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from npugx_cache._compat import runtime
from npugx_cache.portable import devices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npugx_cache.guards.tree import GuardTree


def placed_here(tree: GuardTree) -> GuardTree:
    """The conditions of a stored entry with the current device's index in them."""
    device = tree.device
    if device is None or device.index is not None:
        return tree
    index = runtime.current_index(device.kind)
    return tree.placed(replace(device, index=index), devices.at(index))


class Place:
    """Whether the device and the number of threads of a call are those that an entry needs."""

    def __init__(self, tree: GuardTree) -> None:
        self._device, self._threads = tree.device, tree.threads
        here = tree.device is not None and runtime.accelerator() == tree.device.kind
        self._index = tree.device.index if tree.device is not None and here else None

    def holds(self) -> bool:
        return self.device_is_current() and self._threads in (None, torch.get_num_threads())

    def device_is_current(self) -> bool:
        return self._device is None or (
            self._index is not None and torch.accelerator.current_device_index() == self._index
        )

    def failures(self) -> Iterator[str]:
        if self._device is not None and self._index is None:
            yield f"there is no {self._device.kind} here"
        elif self._device is not None and not self.device_is_current():
            why = f", which it must be: {self._device.why}" if self._device.why else ""
            yield f"{self._device.name} is not the current device{why}"
        if self._threads not in (None, torch.get_num_threads()):
            yield f"torch.get_num_threads() was {self._threads}, is {torch.get_num_threads()}"
