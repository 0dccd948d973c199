"""Runs a program call by call, with static kernels for each new tuple of symbolic sizes.

Used for `static_kernel_compile=True` with `force_eager=True`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.backend.capture.layout import Role
from npugx_cache.interpreter.forks import survive_forks

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.backend.capture.device import Device
    from npugx_cache.backend.capture.layout import Layout
    from npugx_cache.backend.options import Options
    from npugx_cache.backend.static_kernels import StaticKernels


class WithKernels:
    """Takes a program's inputs in order, returns its outputs. Safe to call from several threads."""

    def __init__(
        self,
        program: Callable[..., Any],
        layout: Layout,
        options: Options,
        kernels: StaticKernels,
        device: Device,
    ) -> None:
        self._program = program
        lengths = {*layout.positions(Role.LENGTH)}
        self._positions = tuple(i for i in range(len(layout.roles)) if i not in lengths)
        self._index = options._vllm_aclnn_static_kernel_sym_index  # noqa: SLF001 - a public option
        self._range = options._vllm_aclnn_static_kernel_sym_range  # noqa: SLF001 - a public option
        self._kernels = kernels
        self._device = device
        self._seen: set[tuple[int, ...]] = set()
        self._lock = threading.Lock()
        survive_forks(self, "_lock")

    def __call__(self, *inputs: Any) -> Any:
        sizes = tuple([inputs[i] for i in self._positions if type(inputs[i]) is int])
        if sizes not in self._seen and self._selects(sizes):
            with torch.no_grad(), self._device.current():
                if not self._device.is_capturing():  # or the extra run would enter that capture
                    with self._lock:
                        if sizes not in self._seen:
                            self._kernels.compile_for(inputs)
                            self._seen.add(sizes)
        return self._program(*inputs)

    def _selects(self, sizes: tuple[int, ...]) -> bool:
        if self._range is None:
            return True
        return self._index < len(sizes) and sizes[self._index] in self._range
