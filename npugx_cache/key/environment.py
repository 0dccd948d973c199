"""The factors of a key that describe the process: Python, torch, devices, torch's switches."""

from __future__ import annotations

import functools
import operator
import platform
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache import config, version
from npugx_cache.key import kernels
from npugx_cache.passing import is_passing
from npugx_cache.portable import digest, stable_text
from npugx_cache.private import runtime
from npugx_cache.version import FORMAT, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npugx_cache.key.fingerprint import Named


def obstacle(*, untested_torch: bool) -> str | None:
    """Why no call can be cached in this process or in its present state, or None.

    `untested_torch`: whether the user wants the cache tried on a torch that it was not tested on.
    """
    return unserved_versions(untested_torch=untested_torch) or _unstorable_state()


def unserved_versions(*, untested_torch: bool) -> str | None:
    """Why no call of this process can be cached, whatever its state, or None."""
    reason = version.unserved_torch(torch.__version__, untested=untested_torch)
    return reason or _UNSERVED_PYTHON


_UNSERVED_PYTHON = version.unserved_python(
    sys.implementation.name, sys.version_info[:3], sys.abiflags
)


def _unstorable_state() -> str | None:
    """Why a call can't be traced under the global torch state it is made in, or None."""
    state: dict[str, Any] = runtime.global_state()
    if set(state["torch_function_modes"]) - {"DeviceContext"}:
        return "a TorchFunctionMode is active"
    for name, (inactive, reason) in _PLAIN_STATE.items():
        if state[name] != inactive:
            return reason
    return kernels.refresh().obstacle


_PLAIN_STATE = {
    "torch_dispatch_modes": (0, "a TorchDispatchMode is active"),
    "dual_level": (-1, "forward-mode automatic differentiation is active"),
    "saved_tensor_hooks": (False, "saved-tensor hooks are active"),
    "functorch_levels": (False, "a functorch transform (vmap, grad, ...) is active"),
    "global_module_hooks": (0, "hooks for all modules are registered"),
}


def factors(
    device_types: frozenset[str],
    switches: tuple[object, ...] | None = None,
    *,
    traced: bool = True,
) -> tuple[Named, ...]:
    """All factors of the process, for a call whose tensors are on these kinds of device.

    `switches` is the `call_state` at the call; None reads it now. `traced`: whether Dynamo's
    settings count. They don't for a graph that Dynamo has made already, and engines that hand us
    such graphs set them otherwise when they compile and when they load.
    """
    live = zip(_SWITCHES, switches or call_state(), strict=True)
    rows = ((f"torch.{name}", str(value)) for name, value in live)
    devices = (factor for kind in sorted(device_types) for factor in _device(kind))
    compiler = _compiler_config() if traced else ()
    return (*_process_factors(), *rows, *devices, *compiler)


def lowering_factors() -> Iterator[Named]:
    """Further factors of a lowering, for a graph that others traced: settings that guards have not.

    Only settings that the lowering reads: engines set others when they compile and when they load.
    """
    yield "lowering.attention", str(runtime.sdp_priority())
    yield "lowering.einsum", runtime.einsum_settings()
    for name, value in runtime.lowering_settings():
        yield f"lowering.{name}", stable_text(value)


def library_factors() -> Iterator[Named]:
    """Further factors of a library of machine code: the processor, and Inductor's settings.

    Inductor compiles for exactly this processor, so its widest vectors (`cpu`) are not enough.
    """
    from npugx_cache.private import inductor_run

    yield "cpu.instructions", _instructions()
    for name, text in config.inductor_environment():
        yield f"env.{name}", text
    for name, value in inductor_run.changed_inductor_settings():
        yield f"inductor.{name}", stable_text(value)


def graph_engine_factors() -> Iterator[Named]:
    """Further factors of a graph for GE: what compiles it, and what torch_npu tells GE."""
    if "torch_npu" not in sys.modules:  # there are no tensors on an NPU, so no graph of GE either
        return
    from npugx_cache.backend.static_kernels.wanted import custom_operators
    from npugx_cache.private import graph_engine, npu

    yield "ge.versions", npu.cann_versions()
    yield "npu.custom_operators", custom_operators()
    for name, value in graph_engine.settings_now():
        yield f"ge.{name.removeprefix('ge.')}", value
    for name, text in config.graph_engine_environment():
        yield f"env.{name}", text


@functools.cache
def _instructions() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            # Only the first processor, because the kernel makes the text while it is read.
            text = file.read(1 << 13)
    except OSError as error:
        if is_passing(error):  # a key without the processor would be that of other processors
            raise
        text = ""
    line = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    names = sorted(line[1].split()) if line else [platform.processor(), platform.platform()]
    return f"{len(names)} names {digest(names)[:16]}"


def summary() -> str:
    """The environment as one short text for people."""
    return f"py{platform.python_version()} torch{torch.__version__} {platform.machine()}"


_MHA: Any = torch.backends.mha
_SWITCHES = {
    "float32_matmul_precision": runtime.float32_matmul_precision,
    "sdp.flash": runtime.flash_sdp_enabled,
    "sdp.mem_efficient": runtime.mem_efficient_sdp_enabled,
    "sdp.math": runtime.math_sdp_enabled,
    "sdp.cudnn": runtime.cudnn_sdp_enabled,
    "mha.fastpath": _MHA.get_fastpath_enabled,
    "kernels": functools.partial(operator.itemgetter(0), kernels.texts),
    "mkldnn": runtime.mkldnn_enabled,
    "cudnn": runtime.cudnn_enabled,
}


def call_state() -> tuple[object, ...]:
    """Switches that steer which operators torch picks and that guards don't cover.

    Read at every call: the values alone, in the order of `_SWITCHES`.
    """
    if not kernels.is_current():
        kernels.refresh()
    values = tuple(map(operator.call, _READERS))  # `_read`, inlined to save a call
    return values if values == _seen else _settle_switches(values)


def _settle_switches(values: tuple[object, ...]) -> tuple[object, ...]:
    """The switches as this thread's user set them, remembered for the next call.

    A `torch.export` in another thread turns two of them off for the whole process, for as long as
    it takes. Taken for a change, that would refuse every graph that is bound here. The switches are
    read once more between two looks for such an export, because an export may have ended after the
    first reading, and another one may begin at any time.
    """
    global _seen  # noqa: PLW0603 - a fact about the process
    before = _seen
    if _may_be_an_export(values, before):
        if runtime.exports_elsewhere():
            return before
        values = _read()
        if values == before or (_may_be_an_export(values, before) and runtime.exports_elsewhere()):
            return before
    _seen = values
    return values


def _may_be_an_export(now: tuple[object, ...], before: tuple[object, ...]) -> bool:
    same = now[:_EXPORTS_LEAVE] == before[:_EXPORTS_LEAVE]
    return same and not any(is_on and not was for is_on, was in zip(now, before, strict=True))


def _read() -> tuple[object, ...]:
    kernels.refresh()
    return tuple([read() for read in _READERS])


_READERS = tuple(_SWITCHES.values())
_EXPORTS_LEAVE = list(_SWITCHES).index("mkldnn")
"""How many of the switches, from the first, an export leaves alone: oneDNN and cuDNN are last."""
_seen = _read()


@functools.cache
def _process_factors() -> tuple[Named, ...]:
    return (
        ("format", FORMAT),
        ("npugx_cache", VERSION),
        # Not sys.version: two builds of one version share bytecode, and it holds the build date.
        ("python", f"{platform.python_version()} {sys.implementation.cache_tag}"),
        ("platform", f"{platform.system()} {platform.machine()}"),
        ("torch", f"{torch.__version__} {torch.version.git_version}"),
        ("cpu", torch.backends.cpu.get_cpu_capability()),
        ("cpu.features", " ".join(runtime.cpu_features())),
        # Assertions and docstrings are compiled away under -O and -OO.
        ("optimize", str(sys.flags.optimize)),
    )


def _device(kind: str) -> Iterator[Named]:
    if kind in _DEVICES:
        yield from _DEVICES[kind]()
    else:
        yield f"device.{kind}", "used"


def device_kinds(factors: Iterable[str]) -> frozenset[str]:
    """The kinds of device whose factors are among these names: the inverse of `_device`."""
    found = (name for name in factors if name in _DEVICES or name.startswith("device."))
    return frozenset(name.removeprefix("device.") for name in found)


def _cuda() -> Iterator[Named]:
    from npugx_cache.private import cuda

    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    yield "cuda", f"{torch.version.cuda} {cuda.driver_version()}"
    yield "cuda.device", f"{name} {capability}"


def _npu() -> Iterator[Named]:
    torch_npu = sys.modules.get("torch_npu")
    yield "npu", str(getattr(torch_npu, "__version__", "unknown"))
    yield "npu.cann", runtime.cann_version()
    yield "npu.device", str(vars(torch)["npu"].get_device_name())


_DEVICES = {"cuda": _cuda, "npu": _npu}
"""What must be equal for a graph on a kind of device to run. One factor has the kind's name."""


def _compiler_config() -> Iterator[Named]:
    """Dynamo's settings, by their difference from the defaults and by environment variables.

    Dynamo is not imported for this (P3): while it is not loaded, nobody has changed its settings.
    """
    for name, text in config.compiler_environment():
        yield f"env.{name}", text
    for name, value in runtime.dynamo_settings():
        yield f"dynamo.{name}", stable_text(value)
