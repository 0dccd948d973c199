"""Static kernels: kernels that CANN compiles for exactly the shapes of a graph, before its capture.

run the program once; CANN describes each operator that it launches  (wanted)
-> take packages of kernels from the place where they are kept
   -> or, if there are none, have CANN's op_compiler make them       (tool)
-> install the packages and select them for this process             (installed)

If any step fails, one warning says why, and the call goes on without static kernels.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npugx_cache.backend.capture import device as capture_device
from npugx_cache.backend.capture.captures import first_line
from npugx_cache.backend.capture.outputs import extent_of
from npugx_cache.backend.runtime import limits_cores
from npugx_cache.backend.static_kernels import tool
from npugx_cache.backend.static_kernels.installed import INSTALLED
from npugx_cache.backend.static_kernels.packages import NoKernels
from npugx_cache.backend.static_kernels.wanted import Operators, Wanted
from npugx_cache.events.progress import Progress
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.private import npu

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import torch

    from npugx_cache.backend.capture.captures import Captures
    from npugx_cache.backend.capture.device import Device
    from npugx_cache.backend.capture.layout import Layout
    from npugx_cache.backend.static_kernels.packages import Packages

logger = logging.getLogger("npugx_cache")


class StaticKernels:
    """Compiles static kernels for one program. Not thread-safe: the caller must hold a lock."""

    def __init__(
        self,
        program: Callable[..., Any],
        written: Collection[int],
        captures: Captures,
        device: Device,
    ) -> None:
        self._program = program
        self._written = frozenset(written)
        self._captures = captures
        self._device = device
        self._made = False

    def before_capture(self, inputs: Sequence[Any]) -> None:
        """Provide kernels for the shapes of the first captured call; do nothing for later calls."""
        if not self._made:
            self._made = True
            self.compile_for(inputs)

    def compile_for(self, inputs: Sequence[Any]) -> None:
        """Provide kernels for the shapes of a call, or warn. The inputs are not changed."""
        try:
            failure = self._compile_for(inputs)
        except Exception as error:  # noqa: BLE001 - CANN's, the program's, the file system's
            let_through(error, memory=False)
            failure = first_line(error)
        if failure:
            self._captures.without_kernels(failure)

    def _compile_for(self, inputs: Sequence[Any]) -> str:
        """Provide the kernels; return why there are none, or ""."""
        options = self._captures.options
        with tempfile.TemporaryDirectory(prefix="npugx-kernels-") as name:
            folder = Path(name)
            operators = self._operators(inputs, folder)
            if not operators.texts:
                return ""
            wanted = Wanted.by(operators, options, self._device.index)
            if INSTALLED.has(wanted):
                return ""

            title, count = self._captures.title, len(operators.texts)

            def make() -> Packages | NoKernels:
                logger.info("%s: compiling static kernels of %d operators", title, count)
                with Progress(title) as progress:
                    progress.begin("static kernels")
                    return tool.compile_packages(operators, folder, options, self._device.index)

            kept = self._captures.packages
            if kept is None or options.disable_static_kernel_compile_cache:
                found = make()
            else:
                found = kept.obtain(wanted, make)
            if isinstance(found, NoKernels):
                return found.reason
        failure = INSTALLED.install(found, wanted)
        if not failure:
            logger.info("%s: uses static kernels of %d operators", title, count)
        return failure

    def _operators(self, inputs: Sequence[Any], folder: Path) -> Operators:
        """The operators that a call launches. Runs the program, on copies of what it writes to.

        Ranks that communicate reach this call together. Any decision before it must be the same on
        all ranks, or a rank would wait for ever in a collective that another rank skipped.
        """
        dumped = folder / "dumped"
        dumped.mkdir()
        given = [_copy(x) if i in self._written else x for i, x in enumerate(inputs)]
        with capture_device.capturing, npu.operators_dumped(str(dumped)):
            self._program(*given)
            self._device.synchronize()
        return Operators.dumped_in(dumped)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same sizes and strides, because CANN may choose a kernel by them."""
    extent = extent_of(tensor)
    memory = tensor.as_strided((extent,), (1,)).clone() if extent else tensor.new_empty(0)
    return memory.as_strided(tensor.shape, tensor.stride())


def kernels_of(
    program: Callable[..., Any], layout: Layout, captures: Captures, device: Device
) -> StaticKernels | None:
    """The StaticKernels of a program; None, with a warning, if CANN can't use any in it."""
    if layout.refusal:
        captures.without_kernels(f"it can't be run once more for its operators: {layout.refusal}")
        return None
    if limits_cores(program) and not npu.is_cann_from("9.0.0"):
        captures.without_kernels("it limits cores, which CANN before 9.0.0 can't combine with them")
        return None
    from npugx_cache.backend.capture.layout import Role

    return StaticKernels(program, layout.positions(Role.WRITTEN), captures, device)
