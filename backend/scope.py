"""Scopes: what holds for a part of a function, in eager, in a graph, and in a captured graph."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from npugx_cache.backend import operators
from npugx_cache.errors import BackendUnavailable, OptionError


class limit_core_num:  # noqa: N801 - the vendor's name, and used like a function
    """Let the operators inside use so many cube and vector cores of the NPU at most.

    The limit is put on `stream`, by default the one that is current at the beginning, and taken
    back at the end. Raises OptionError for a number below 1, BackendUnavailable without an NPU.
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
                "limit_core_num limits the cores of an NPU, and torch_npu is not loaded here"
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
    """Let the operators inside give the same bits at each run, as far as a level asks for it.

    0 asks for nothing; 1 to 3 are those of `torch_npu.npu.set_deterministic_level`, each stricter
    than the one before. Holds for the whole process while inside, and so does, for levels above 0,
    `torch.use_deterministic_algorithms`. Raises OptionError for another level, BackendUnavailable
    without an NPU.
    """

    def __init__(self, level: int) -> None:
        if type(level) is not int or level not in range(4):
            raise OptionError("deterministic: level must be 0, 1, 2 or 3")
        if not hasattr(torch, "npu"):
            raise BackendUnavailable(
                "deterministic sets a level of an NPU's operators, and torch_npu is not loaded here"
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
