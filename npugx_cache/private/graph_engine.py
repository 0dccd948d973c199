"""The vendor's extension modules that drive CANN's graph engine (GE).

They are loaded from their files, under their own names, so that a restored call loads neither
torchair's Python nor protobuf; a program that imports torchair later finds them.
"""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from npugx_cache.interpreter.forks import survive_forks
from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Run: TypeAlias = Callable[[list[torch.Tensor], list[torch.Tensor | None]], list[torch.Tensor]]

_PACKAGE = "torchair.core"
_CONTIGUOUS_FORMATS = frozenset({-1, 0, 2, 30, 47})
"""Undefined, NCHW, ND, NCDHW and NCL: what torch_npu calls memory that torch lays out."""
_lock = threading.RLock()
survive_forks(sys.modules[__name__], "_lock")
_started: dict[str, str] = {}


class Definition(NamedTuple):
    """A graph for the engine, in plain data.

    graph: the serialised `ge.proto.ModelDef`. options: those of this graph, by name. The others are
    what the vendor's executor asks for.
    """

    graph: bytes
    options: tuple[tuple[str, str], ...]
    placements: tuple[int, ...]
    dtypes: tuple[int, ...]
    executor: int
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]


class EngineError(Exception):
    """The graph engine can't do what it is asked for in this process; the text says why."""


def is_installed() -> bool:
    """Whether this process can have a graph engine at all, without loading anything for it."""
    return "torch_npu" in sys.modules or importlib.util.find_spec("torch_npu") is not None


def start(options: Mapping[str, str]) -> None:
    """Start the engine of this process, or raise EngineError if it runs with other options.

    The engine takes options, its device and the precision of products once in the life of a
    process, and ignores what it is given later.
    """
    wanted = {**options, **_settings()}
    with _lock:
        if not _started:
            _refuse_vendors_engine()
            native = _extension("_torchair")
            _extension("_npu_graph_executor")
            try:
                native.InitializeGraphEngine(wanted)
            except RuntimeError as error:
                raise EngineError(f"the graph engine does not start: {error}") from error
            _started.update(wanted)
            atexit.register(native.FinalizeGraphEngine)
        for name in sorted({*_started, *wanted}):
            if _started.get(name) != wanted.get(name):
                raise EngineError(
                    f"the graph engine of this process was started with {name}="
                    f"{_started.get(name)}, and this graph needs {wanted.get(name)}; the engine "
                    "takes such options once: run the graph in a process of its own"
                )


def _refuse_vendors_engine() -> None:
    vendors = sys.modules.get(f"{_PACKAGE}._backend")
    if getattr(vendors, "_GLOBAL_COMPILE_OPTION", None) is not None:
        raise EngineError(
            "torchair has started the graph engine of this process, and with which settings is not "
            "known: cache all graphs of GE in a process, or none"
        )


def _settings() -> dict[str, str]:
    """What the vendor tells the engine of the state of the process."""
    npu = sys.modules["torch_npu"].npu
    products = f"{int(npu.conv.allow_hf32)}{int(npu.matmul.allow_hf32)}"
    return {
        "ge.exec.deviceId": str(npu.current_device()),
        "ge_run_with_torch_npu": "1",
        "ge.exec.allow_hf32": products,
        "ge.deterministic": str(int(torch.are_deterministic_algorithms_enabled())),
        "ge.deterministicLevel": str(npu._get_deterministic_level()),
    }


def settings_now() -> tuple[tuple[str, str], ...]:
    """The settings of torch_npu that steer what GE compiles, by name; the device is not among."""
    return tuple(sorted((k, v) for k, v in _settings().items() if k != "ge.exec.deviceId"))


def load(name: str, definition: Definition, more_options: Mapping[str, str]) -> Run:
    """Load a graph, compile it, and return its call: inputs, and memory for results, or None.

    Raises RuntimeError for an error of GE.
    """
    data, options, placements, dtypes, executor, *shapes = definition
    graph = _extension("_torchair").TorchNpuGraphBase(name)
    graph.load(data, dict(options) | dict(more_options), list(placements), list(dtypes), executor)
    graph.set_hint_shape(*([list(each) for each in shape] for shape in shapes))
    graph.compile()

    def run(inputs: list[torch.Tensor], places: list[torch.Tensor | None]) -> list[torch.Tensor]:
        made: list[torch.Tensor] = graph.run((inputs, places, None))
        return made

    return run


def has_plain_format(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory is laid out as torch does it, and not in a format of the NPU's."""
    return sys.modules["torch_npu"].get_npu_format(tensor) in _CONTIGUOUS_FORMATS


def current_stream() -> int:
    """The handle of the current stream of the current NPU."""
    native = sys.modules["torch_npu"]
    return int(native._C._npu_getCurrentRawStream(native.npu.current_device()))


def _extension(name: str) -> Any:
    full = f"{_PACKAGE}.{name}"
    if full not in sys.modules:
        home = Path(str(sys.modules["torch_npu"].__file__)).parent
        path = str(home / "dynamo" / "torchair" / "core" / f"{name}.so")
        loader = importlib.machinery.ExtensionFileLoader(full, path)
        spec = importlib.util.spec_from_loader(full, loader, origin=path)
        if spec is None or not Path(path).is_file():
            raise EngineError(f"torch_npu has no {name}.so, which drives the graph engine")
        try:
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
        except ImportError as error:
            raise EngineError(f"{name}.so of torch_npu can't be loaded: {error}") from error
        sys.modules[full] = module
    return sys.modules[full]


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
