"""Capture on the CPU: calls the program, under the same rules as a graph that a device captured.

It makes nothing faster. Its purpose is to test on a machine without a device all code of capture
and replay that does not depend on the device. As with a real graph, a capture has no effects, a
graph keeps no input alive, and every replay writes its results to the same memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.backend.capture.device import Captured, Device
from npugx_cache.backend.capture.outputs import tensors_in
from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npugx_cache.backend.options import Options

_POISON = 0xFF  # NaN in every floating dtype


class CpuGraph:
    """Calls a program on the addresses it was captured with."""

    def __init__(
        self, program: Callable[..., Any], inputs: Sequence[Any], results: Sequence[torch.Tensor]
    ) -> None:
        self._program: Callable[..., Any] | None = program
        self._inputs = [
            runtime.unowned(value) if isinstance(value, torch.Tensor) else value for value in inputs
        ]
        self._results = tuple(results)

    def replay(self) -> None:
        assert self._program is not None, "a graph is replayed after its reset"
        made = tensors_in(self._program(*self._inputs))
        for old, new in zip(self._results, made, strict=True):
            if old.data_ptr() != new.data_ptr():
                old.untyped_storage().copy_(new.untyped_storage())

    def reset(self) -> None:
        self._program, self._inputs, self._results = None, [], ()


class CpuDevice(Device):
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
        del pool, options
        storages = {_memory(inputs[i]): inputs[i].untyped_storage() for i in written}
        before = [(storage, storage.clone()) for storage in storages.values()]
        try:
            returned = program(*inputs)
        finally:
            for storage, content in before:
                storage.copy_(content)
        results = tensors_in(returned)
        known = {_memory(t) for t in (*inputs, *constants) if isinstance(t, torch.Tensor)}
        for tensor in results:
            if _memory(tensor) not in known:
                _poison(tensor.untyped_storage())
        return Captured(CpuGraph(program, inputs, results), returned, None)


def _poison(storage: Any) -> None:
    storage.fill_(_POISON)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


DEVICE = CpuDevice
