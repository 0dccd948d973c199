"""Loads a compiled library and calls it instead of its program. Loads no compiler.

Loading a library runs code of the library. `load` is therefore called only on bytes of an entry
that passed the store's trust check and whose digest was verified (P6).
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.backend.capture.outputs import span_of
from npugx_cache.backend.runtime import without_autocast
from npugx_cache.interpreter.forks import survive_forks
from npugx_cache.portable import NotPortable
from npugx_cache.private import inductor_run as compat
from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npugx_cache.backend.inductor.library import Library

    Native = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
    Compiled = Callable[[Sequence[torch.Tensor]], list[torch.Tensor] | None]

logger = logging.getLogger("npugx_cache")

_ACCEPTED = 16
_lock = threading.Lock()
survive_forks(sys.modules[__name__], "_lock")
_loaded: dict[str, Native] = {}
_serial = itertools.count(1)


def load(data: bytes) -> Native:
    """The entry point of a library with these bytes; raises `NotPortable` if it can't be loaded.

    Equal libraries are loaded once per process.
    """
    digest = hashlib.sha256(data).hexdigest()
    with _lock:
        if digest not in _loaded:
            _loaded[digest] = _load(data)
        return _loaded[digest]


def _load(data: bytes) -> Native:
    """Load from memory: nobody can change a file, and no folder needs to allow executables."""
    if not hasattr(os, "memfd_create"):
        raise NotPortable("compiled libraries are loaded from memory, which needs Linux")
    descriptor = os.memfd_create("npugx_cache library", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        return compat.open_library(_path_of(descriptor, next(_serial)))
    except (OSError, RuntimeError) as error:
        first = str(error).partition("\n")[0]
        raise NotPortable(f"the compiled library can't be loaded here: {first}") from error
    finally:
        os.close(descriptor)


def _path_of(descriptor: int, serial: int) -> str:
    """A path of the descriptor's file that differs from every earlier one.

    The loader identifies a library by its path and would return an earlier library with the same
    path, because the system reuses numbers of descriptors. "//" and "/./" mean the same as "/", so
    we write the serial in binary with them.
    """
    spelled = "".join("/." if bit == "1" else "/" for bit in f"{serial:b}")
    return f"/proc/self/fd{spelled}/{descriptor}"


def bind(
    library: Library,
    run: Compiled,
    finish: Callable[..., Any],
    constants: Sequence[torch.Tensor],
    program: Callable[..., Any],
    *,
    disable_autocast: bool,
) -> Callable[..., Any]:
    """The library as a callable that takes the program's inputs and returns its outputs.

    `program` computes the same call by call. It runs instead of the library if an input that is
    written to overlaps another one, because the library's result is undefined then, and where the
    library returns None, because it can't have the call and has done nothing.
    """
    own = tuple(constants[i] for i in library.constants)
    distinct = _Distinct(library)
    tensors, sizes, written = library.tensors, library.sizes, library.written
    after = library.finish_inputs

    def call(*inputs: Any) -> Any:
        if written and not distinct(inputs):
            return program(*inputs)
        given = [inputs[i] for i in tensors]
        if sizes:
            given += [_of_size(inputs[i]) for i in sizes]
        results = run([*given, *own])
        if results is None:
            return program(*inputs)
        if written:
            runtime.count_writes([inputs[i] for i in written])
        return finish(*[inputs[i] for i in after], *results)

    return without_autocast(call) if disable_autocast else call


def _of_size(number: int) -> torch.Tensor:
    return torch.empty(1, device="cpu").expand(number)


class _Distinct:
    """Tells whether the inputs that are written to overlap no others.

    Remembers the addresses that it has accepted, so that repeated calls skip the comparison.
    """

    def __init__(self, library: Library) -> None:
        self._tensors = library.tensors
        self._written = frozenset(library.written)
        self._accepted: set[tuple[Any, ...]] = set()
        self._warned = False

    def __call__(self, inputs: Sequence[Any]) -> bool:
        places = tuple([(inputs[i].data_ptr(), inputs[i].shape) for i in self._tensors])
        if places in self._accepted:
            return True
        if self._overlap(inputs):
            if not self._warned:
                logger.warning(
                    "inputs that a compiled graph writes to overlap others: it runs call by call"
                )
                self._warned = True
            return False
        if len(self._accepted) >= _ACCEPTED:
            self._accepted = set()
        self._accepted.add(places)
        return True

    def _overlap(self, inputs: Sequence[Any]) -> bool:
        spans = sorted((*span_of(inputs[i]), i in self._written) for i in self._tensors)
        end, end_of_written = 0, 0
        for first, last, is_written in spans:
            if first == last:
                continue
            if first < end_of_written or (is_written and first < end):
                return True
            end = max(end, last)
            if is_written:
                end_of_written = max(end_of_written, last)
        return False
