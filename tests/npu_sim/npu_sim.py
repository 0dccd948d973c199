"""The simulated device in a test process: after `install()`, "npu" tensors compute on the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch_npu  # noqa: F401 - registers the device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COUNTS = ("executed", "recorded", "replayed", "updated", "live_graphs")


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(os.environ["NPU_STUB_LIB"]) / "libnpusim.so"))


def install() -> None:
    """Give tensors on the device CPU kernels. Needs the environment that `run` sets."""
    _library().npu_sim_install(0)
    _cast()


def load_vendors() -> None:
    """Load the vendor's backend now: when it loads lazily, another thread's import breaks it."""
    assert importlib.import_module("npugraph_ex").CompilerConfig


def stats() -> dict[str, int]:
    """How many operators were run, recorded, replayed and updated; and how many graphs live."""
    counts = (ctypes.c_long * len(COUNTS))()
    _library().npu_sim_stats(counts)
    return dict(zip(COUNTS, counts, strict=True))


class Issued(NamedTuple):
    """One thing that was issued to a stream.

    `what` is an operator, or "record", "wait", "synchronize", "replay", "cube cores", "vector
    cores", "group begin", "group end", "update begin", "update end", "external wait", "external
    reset", "external record", "dump begin", "dump end", "select kernels", or "deterministic" before
    an operator at a level above 0; `on` the number of the event, in order of their first
    appearance, or of cores, or of installed static kernels, or the level.
    """

    what: str
    on: int
    stream: str


@contextlib.contextmanager
def issued(**streams: torch.Stream) -> Iterator[list[Issued]]:
    """What is issued inside. Streams are called as in `streams`, or "" for the default one.

    Others are numbered in order of their first appearance.
    """
    stub = _stub()
    stub.npu_stub_log_stop.restype = ctypes.c_char_p
    names = {_handle(each): name for name, each in streams.items()}
    names.setdefault(torch.npu.default_stream().npu_stream, "")
    found: list[Issued] = []
    events: dict[str, int] = {}
    stub.npu_stub_log_start()
    try:
        yield found
    finally:
        for line in stub.npu_stub_log_stop().decode().splitlines():
            what, on, stream = line.split("\t")
            handle = 0 if stream == "(nil)" else int(stream, 16)
            count = 0 if on == "(nil)" else int(on, 16)
            if what in ("record", "wait"):
                count = events.setdefault(on, len(events))
            name = names.setdefault(handle, f"stream {len(names)}")
            found.append(Issued(what.removeprefix("aten::"), count, name))


def _handle(stream: torch.Stream) -> int:
    parts = {name: getattr(stream, name) for name in ("stream_id", "device_index", "device_type")}
    return int(torch.npu.Stream(**parts).npu_stream)


def route(namespace: str, name: str, function: Callable[..., Any]) -> None:
    """Give an operator of torch_npu's, "op" or "op.overload", a function as its kernel.

    It computes on CPU tensors, and is recorded, replayed and updated like torch's own operators.
    """
    library = torch.library.Library(namespace, "IMPL")
    library.impl(name, function, "CPU")
    _libraries.append(library)
    _library().npu_sim_route(namespace.encode(), name.encode())


_libraries: list[torch.library.Library] = []


@functools.cache
def _cast() -> None:
    """Cast for real where torch_npu calls its own operator: in `softmax(half, dtype=float32)`.

    Its kernel belongs to the old operator library (aclop), which is not simulated, and which no
    capture takes.
    """
    route("npu", "_npu_dtype_cast", lambda x, dtype: x.to(dtype, copy=True))


def waiting() -> int:
    """How many replays wait for a value that nobody has written."""
    return ctypes.c_long.in_dll(_stub(), "npu_stub_waiting").value


def static_kernels() -> int:
    """How many kernels of installed packages this process has selected."""
    return ctypes.c_long.in_dll(_stub(), "npu_stub_static_kernels").value


def _stub() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(os.environ["NPU_STUB_LIB"]) / "libnpustub.so"))


def set_trace(text: str) -> None:
    """What `NPUGraph.debug_dump` writes from now on: there are no kernels here to be traced."""
    stub = _stub()
    _traces.append(text.encode())  # the library keeps the address
    ctypes.c_char_p.in_dll(stub, "npu_stub_graph_json").value = _traces[-1]


_traces: list[bytes] = []
