"""Capture and replay: one runtime for all devices that can record a graph and run it again.

A restored call imports this package, so it must load no compiler. All that it needs to know about a
graph is in a Layout, which `capture_layout` computes when the graph is compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache.backend.capture.captures import Captures
from npugx_cache.backend.capture.layout import Layout, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

__all__ = ["Captures", "Layout", "Role", "runner_of"]


def runner_of(
    program: Callable[..., Any],
    layout: Layout | None,
    constants: Sequence[torch.Tensor],
    captures: Captures | None,
) -> Callable[..., Any]:
    """Make the callable that runs a program: through captured graphs if possible, else directly.

    If the option `record_statistics_debug_info` is on, each call also logs statistics.
    """
    run = _captured(program, layout, constants, captures)
    if captures is None or layout is None or not captures.options.record_statistics_debug_info:
        return run
    from npugx_cache.backend.capture.device import open_device
    from npugx_cache.backend.capture.statistics import recording

    device = open_device(layout.device)
    return recording(run, captures.title, [device] if device is not None else [])


def _captured(
    program: Callable[..., Any],
    layout: Layout | None,
    constants: Sequence[torch.Tensor],
    captures: Captures | None,
) -> Callable[..., Any]:
    """The program through captured graphs, if the options and its layout allow it.

    Capture makes nothing faster on a CPU. There the program is called directly, unless the backend
    captures on a CPU too (`Captures.on_cpu`).
    """
    if captures is None or layout is None:
        return program
    if captures.options.force_eager and captures.options.static_kernel_compile:
        return _with_kernels(program, layout, captures)
    if captures.options.force_eager or captures.options.dump_tensor_data:
        return program
    if not layout.device and not layout.refusal:
        return program  # it has no tensors, only arithmetic on sizes
    kind = layout.device.partition(":")[0]
    if kind == "cpu" and not captures.on_cpu:
        return program
    from npugx_cache.backend.capture.device import open_device
    from npugx_cache.backend.capture.runner import Runner

    device = None if layout.refusal else open_device(layout.device)
    if device is None:
        captures.refused(layout.refusal or f"this version can't capture on {layout.device}")
        return program
    from npugx_cache.backend import runtime  # lazy: a command that lists entries needs no torch

    streams = runtime.streams_of(program)
    if streams is None:
        return Runner(program, layout, constants, captures, device)
    from npugx_cache.backend.capture.multi_stream import SideStreamsRunner

    return SideStreamsRunner(program, layout, constants, captures, device, streams)


def _with_kernels(
    program: Callable[..., Any], layout: Layout, captures: Captures
) -> Callable[..., Any]:
    """Run the program call by call, with static kernels for the shapes of the calls."""
    from npugx_cache.backend.capture.device import open_device

    device = open_device(layout.device) if layout.device.startswith("npu") else None
    if device is None:
        return program
    from npugx_cache.backend.static_kernels import kernels_of
    from npugx_cache.backend.static_kernels.eager import WithKernels

    kernels = kernels_of(program, layout, captures, device)
    if kernels is None:
        return program
    return WithKernels(program, layout, captures.options, kernels, device)
