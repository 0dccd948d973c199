"""Scopes: settings for a part of a function (core limits, determinism), used with `with`.

A scope holds in eager code, in a compiled graph, and in a captured graph.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from npugx_cache.backend import operators
from npugx_cache.errors import BackendUnavailable, OptionError


class limit_core_num:  # noqa: N801 - the vendor's name, and used like a function
    """Limit the number of cube and vector cores of the NPU that the operators inside may use.

    The limit is set on `stream` (default: the stream that is current at the beginning); the
    previous limit comes back at the end. Raises OptionError for a number below 1, and
    BackendUnavailable if torch_npu is not loaded.
    """

    def __init__(self, op_aicore_num: int, op_vectorcore_num: int, stream: Any = None) -> None:
        for name, given in (
            ("op_aicore_num", op_aicore_num),
            ("op_vectorcore_num", op_vectorcore_num),
        ):
            if type(given) is not int or given < 1:
                raise OptionError(f"limit_core_num: {name} must be an int of at least 1")
        if not hasattr(torch, "npu"):
            raise BackendUnavailable(
                "limit_core_num limits the cores of an NPU, but torch_npu is not loaded"
            )
        self._cores = op_aicore_num, op_vectorcore_num
        self._stream = stream
        self._undo: list[operators.Limited] = []

    def __enter__(self) -> None:
        if not torch.compiler.is_compiling():
            self._undo.append(operators.limit(*self._cores, self._stream))
        else:
            with self._stream if self._stream is not None else contextlib.nullcontext():
                torch.ops.npugx_cache.limit_cores(*self._cores)

    def __exit__(self, *_: object) -> None:
        if not torch.compiler.is_compiling():
            self._undo.pop().undo()
        else:
            torch.ops.npugx_cache.restore_cores()


class deterministic:  # noqa: N801 - the vendor's name, and used like a function
    """Make the operators inside compute the same bits at each run, as strictly as `level` asks.

    Level 0 asks for nothing. Levels 1 to 3 are those of `torch_npu.npu.set_deterministic_level`,
    each stricter than the one before. Levels above 0 switch `torch.use_deterministic_algorithms`
    on, level 0 switches it off. Inside the scope, the level holds for the whole process. Raises
    OptionError for another level, and BackendUnavailable if torch_npu is not loaded.
    """

    def __init__(self, level: int) -> None:
        if type(level) is not int or level not in range(4):
            raise OptionError("deterministic: level must be 0, 1, 2 or 3")
        if not hasattr(torch, "npu"):
            raise BackendUnavailable(
                "deterministic sets a level of the operators of an NPU, but torch_npu is not loaded"
            )
        self._level = level
        self._undo: list[operators.Determined] = []

    def __enter__(self) -> None:
        if not torch.compiler.is_compiling():
            self._undo.append(operators.determine(self._level))
        else:
            torch.ops.npugx_cache.set_determinism(self._level)

    def __exit__(self, *_: object) -> None:
        if not torch.compiler.is_compiling():
            self._undo.pop().undo()
        else:
            torch.ops.npugx_cache.restore_determinism()
