"""Loads a graph into the graph engine (GE) and calls it, without torchair's Python or Dynamo.

GE compiles what it is given, so `load` is called only on bytes of an entry that passed the store's
trust check and whose digest was verified (P6).
"""

from __future__ import annotations

import hashlib
import logging
import sys
import tempfile
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from npugx_cache.backend.ge import engine_graph as data
from npugx_cache.backend.static_kernels.wanted import custom_operators
from npugx_cache.interpreter.forks import survive_forks
from npugx_cache.portable import NotPortable
from npugx_cache.private import graph_engine, npu

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger("npugx_cache")

_CACHE, _KEY = "ge.graph_compiler_cache_dir", "ge.graph_key"
_lock = threading.RLock()
survive_forks(sys.modules[__name__], "_lock")
_loaded: weakref.WeakValueDictionary[tuple[str, int], _Call] = weakref.WeakValueDictionary()


def load(stored: bytes) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor] | None]:
    """The call of a stored graph; raises `NotPortable` if GE can't have it in this process.

    Equal graphs are loaded once per process, on the current device, which is the engine's. The call
    returns None, with one warning, where the program has to run in its place.
    """
    if "torch_npu" not in sys.modules:
        raise NotPortable("a graph for GE needs torch_npu, which is not loaded")
    device = int(vars(torch)["npu"].current_device())
    name = hashlib.sha256(stored).hexdigest(), device
    with _lock:
        found = _loaded.get(name)
        if found is None:
            found = _loaded[name] = _Call(data.EngineGraph.unpack(stored), device)
        return found


class _Unserved(Exception):  # caught in this module; users never see it
    """The program has to run this call in the place of GE's graph; the text says why."""


class _Call:
    """A graph in the engine. One call runs at a time, because the vendor's executor takes no more.

    The executor belongs to the stream of its first call. It knows an input by its format in the
    first call too, and here that is always torch's own.
    """

    def __init__(self, graph: data.EngineGraph, device: int) -> None:
        self._graph = graph
        self._run = compile_graph(graph)
        self._lock = threading.RLock()
        survive_forks(self, "_lock")
        self._stream: int | None = None
        self._failure, self._warned = "", False
        self._device = torch.device("npu", device)
        self._plain: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    def __call__(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        try:
            return self._results(arguments)
        except _Unserved as error:
            if not self._warned:
                logger.warning("a call runs operator by operator: %s", error)
            self._warned = True
            return None

    def _results(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        graph = self._graph
        inputs = [_make_input(each, arguments) for each in graph.inputs]
        places: list[torch.Tensor | None] = [None] * len(graph.definition.dtypes)
        for index, source in graph.written:
            places[index] = inputs[source]
        with self._lock:
            self._refuse_stream()
            self._refuse_places(inputs)
            made = self._engine(inputs, places)
        for source in graph.updated:
            kind, (argument,) = graph.inputs[source]
            if kind == data.CONTIGUOUS:
                arguments[argument].copy_(inputs[source])
        return [_lay_out(made, each) for each in graph.results]

    def _engine(
        self, inputs: list[torch.Tensor], places: list[torch.Tensor | None]
    ) -> list[torch.Tensor]:
        """Run the graph; where it fails and writes to no argument, the program runs from then on.

        A failed graph may have written to a part of its arguments, and then the error is raised.
        """
        if self._failure:
            raise _Unserved(self._failure)
        try:
            made: list[torch.Tensor] = self._run(inputs, places)
        except RuntimeError as error:
            if self._graph.updated or isinstance(error, torch.OutOfMemoryError):
                raise
            self._failure = f"its graph of GE failed: {graph_engine.first_line(error)}"
            raise _Unserved(self._failure) from error
        return made

    def _refuse_stream(self) -> None:
        stream = graph_engine.current_stream()
        if self._stream is None:
            self._stream = stream
        if self._stream != stream:
            raise _Unserved("a graph of GE runs on the stream of its first call only")

    def _refuse_places(self, inputs: Sequence[torch.Tensor]) -> None:
        """Raise `_Unserved` for an input on another device, or in a format of the NPU's own.

        To ask takes as long as a small operator. A tensor that was asked and is at the same address
        has the same format, because a cast to another one takes new memory.
        """
        for index, (each, how) in enumerate(zip(inputs, self._graph.inputs, strict=True)):
            if how.kind == data.NUMBERS:
                continue
            known, address = self._plain.get(index, (None, 0))
            if known is not None and known() is each and address == each.data_ptr():
                continue
            if each.device != self._device:
                raise _Unserved(f"input {index} of its graph of GE is on {each.device}")
            if not graph_engine.has_plain_format(each):
                raise _Unserved(f"input {index} of its graph of GE is in a format of the NPU's own")
            self._plain[index] = weakref.ref(each), each.data_ptr()


def _make_input(how: data.Input, arguments: Sequence[torch.Tensor]) -> torch.Tensor:
    if how.kind == data.NUMBERS:
        return torch.tensor([arguments[i].shape[0] for i in how.arguments], dtype=torch.int64)
    given = arguments[how.arguments[0]]
    return given.contiguous() if how.kind == data.CONTIGUOUS else given


def _lay_out(made: Sequence[torch.Tensor], how: data.Result) -> torch.Tensor:
    result = made[how.place].clone() if how.copied else made[how.place]
    if not how.order:
        return result
    laid_out = result.permute(how.order).contiguous()
    return laid_out.permute([how.order.index(axis) for axis in range(len(how.order))])


def compile_graph(graph: data.EngineGraph, kept: Path | None = None) -> graph_engine.Run:
    """Load a graph and have GE compile it, or use the graph's compiled model.

    kept: a folder in which GE leaves the compiled model, or None. GE takes any file of the right
    name for the model of a graph. So it is given a new folder that only this user can write to, and
    a name that is the digest of all that the model depends on. A model that was compiled by another
    CANN or for another chip is not used. Raises `NotPortable`.
    """
    try:
        graph_engine.start(dict(graph.engine))
        key = graph.digest(versions())
        if graph.models and graph.compiled_as == key:
            try:
                return _with_model(graph, key)
            except RuntimeError as error:
                logger.warning(
                    "GE compiles a graph, because it does not take the stored model: %s",
                    graph_engine.first_line(error),
                )
        return _load(graph, key, kept)
    except (graph_engine.EngineError, RuntimeError) as error:
        text = f"the graph engine can't run the graph here: {graph_engine.first_line(error)}"
        raise NotPortable(text) from error


def _with_model(graph: data.EngineGraph, key: str) -> graph_engine.Run:
    with tempfile.TemporaryDirectory(prefix="npugx-ge-") as folder:
        for ending, file in graph.models:
            (Path(folder) / f"{key}{ending}").write_bytes(file)
        return _load(graph, key, Path(folder))


def _load(graph: data.EngineGraph, key: str, folder: Path | None) -> graph_engine.Run:
    kept = {_CACHE: str(folder), _KEY: key} if folder is not None else {}
    return graph_engine.load(f"npugx_{key[:16]}", graph.definition, kept)


def versions() -> str:
    """The versions of what compiles a graph, and the chip."""
    chip = vars(torch)["npu"].get_device_name()
    settings = graph_engine.settings_now()
    return f"{npu.cann_versions()} {custom_operators()} {chip} {settings}"
