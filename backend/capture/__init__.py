"""Capture and replay: one runtime over the devices that can record a graph and run it again.

Restore imports this package: it knows no compiler. What it needs to know of a graph is in a Layout,
which `capture_layout` makes when the graph is compiled.
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
    """The program as it is run: captured where that is possible, and watched where asked for."""
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
    """The program through captured graphs, where that is possible and asked for.

    A CPU gains nothing from it, so there a program is called directly unless the backend is one
    that does nothing else than capture.
    """
    if captures is None or layout is None:
        return program
    if captures.options.force_eager and captures.options.static_kernel_compile:
        return _with_kernels(program, layout, captures)
    if captures.options.force_eager or captures.options.dump_tensor_data:
        return program
    if not layout.device and not layout.refusal:
        return program  # arithmetic on sizes
    kind = layout.device.partition(":")[0]
    if kind == "cpu" and not captures.on_cpu:
        return program
    from npugx_cache.backend.capture.device import open_device
    from npugx_cache.backend.capture.runner import Runner

    device = None if layout.refusal else open_device(layout.device)
    if device is None:
        captures.refused(layout.refusal or f"this version can't capture on {layout.device}")
        return program
    from npugx_cache.backend import runtime  # it loads torch, which nobody needs who lists entries

    streams = runtime.streams_of(program)
    if streams is None:
        return Runner(program, layout, constants, captures, device)
    from npugx_cache.backend.capture.multi_stream import SideStreamsRunner

    return SideStreamsRunner(program, layout, constants, captures, device, streams)


def _with_kernels(
    program: Callable[..., Any], layout: Layout, captures: Captures
) -> Callable[..., Any]:
    """The program call by call, with static kernels for the shapes that it is called with."""
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
