"""The simulated device in a test process: after `install()`, "npu" tensors compute on the CPU."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

import torch_npu  # noqa: F401 - registers the device

COUNTS = ("executed", "recorded", "replayed", "updated", "live_graphs")


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(os.environ["NPU_STUB_LIB"]) / "libnpusim.so"))


def install() -> None:
    """Give tensors on the device CPU kernels. Needs the environment that `run` sets."""
    _library().npu_sim_install(0)


def stats() -> dict[str, int]:
    """How many operators were run, recorded, replayed and updated; and how many graphs live."""
    counts = (ctypes.c_long * len(COUNTS))()
    _library().npu_sim_stats(counts)
    return dict(zip(COUNTS, counts, strict=True))


def set_trace(text: str) -> None:
    """What `NPUGraph.debug_dump` writes from now on: there are no kernels here to be traced."""
    stub = ctypes.CDLL(str(Path(os.environ["NPU_STUB_LIB"]) / "libnpustub.so"))
    _traces.append(text.encode())  # the library keeps the address
    ctypes.c_char_p.in_dll(stub, "npu_stub_graph_json").value = _traces[-1]


_traces: list[bytes] = []
