"""Runner: captures a program once per shape, and replays the graph at later calls.

call -> compute its key: sizes, and addresses of the tensors that the graph uses in place
     -> there is a graph with this key -> copy the inputs, replay, return the results
     -> `captures` admits a capture    -> capture a graph, and go on as above
     -> else                           -> run the program itself
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.backend.capture import device as capture_device
from npugx_cache.backend.capture import planned
from npugx_cache.backend.capture.buffers import Buffer, fill, transfer
from npugx_cache.backend.capture.captured import CapturedGraph, Tally
from npugx_cache.backend.capture.keys import Keys
from npugx_cache.backend.capture.outputs import Outputs
from npugx_cache.backend.capture.tasks import Length, Recorder
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from npugx_cache.backend.capture.captures import Captures
    from npugx_cache.backend.capture.device import Captured, Device
    from npugx_cache.backend.capture.keys import Key
    from npugx_cache.backend.capture.layout import Layout
    from npugx_cache.backend.static_kernels import StaticKernels


class Runner:
    """Takes a program's inputs in order, returns its outputs. Safe to call from several threads.

    constants: the tensors that the program owns. The layout must have no refusal.
    """

    def __init__(
        self,
        program: Callable[..., Any],
        layout: Layout,
        constants: Sequence[torch.Tensor],
        captures: Captures,
        device: Device,
    ) -> None:
        self.captures = captures
        self._program = program
        self._constants = tuple(constants)
        self._device = device
        self._layout = layout
        self._keys = Keys(layout, captures.options)
        self._stream: Any = None
        self._pool: Any = None
        self._kernels = _kernels_of(program, layout, captures, device)

    def __call__(self, *inputs: Any) -> Any:
        with torch.no_grad(), self._device.current():
            if not self._device.is_capturing():  # else the call becomes part of that other capture
                with self.captures.lock:
                    graph = self._graph_for(inputs)
                    if graph is not None and not graph.spoils(inputs):
                        return self._replay(graph, inputs)
            return self._program(*inputs)

    def _replay(self, graph: CapturedGraph, inputs: Sequence[Any]) -> Any:
        # Wait for the stream of the last replay, which may belong to another thread and may still
        # use the buffers.
        self._stream = self._device.follow(self._stream)
        try:
            return graph.replay(inputs)
        except BaseException:
            self.captures.drop(graph)
            raise

    def _graph_for(self, inputs: Sequence[Any]) -> CapturedGraph | None:
        captures, state = self.captures, self._state()
        key = self._keys.of(inputs, state)
        graph = captures.graphs.use(key)
        if graph is not None and not captures.options.force_recapture:
            return graph
        if graph is None:
            wasted = captures.bury(key)
            if wasted is not None and self._keys.set_adrift(wasted, key):
                key = self._keys.of(inputs, state)
                captures.graphs.use(key)
                captures.forgive(key)
            if not captures.admits(key, self._device.warm_up_calls):
                return None
        try:
            graph = self._captured(key, inputs)
        except Exception as error:  # noqa: BLE001 - for any error, the call can run uncaptured
            let_through(error, memory=False)
            captures.failed(key, error)
            return None
        captures.add(key, graph)
        return graph

    # --- ahead of the first call

    def graphs(self) -> list[CapturedGraph]:
        """The captured graphs of this program."""
        # Don't take the lock: a thread that writes the capture plan must not hold the lock while
        # the process forks.
        every: list[CapturedGraph] = []
        with contextlib.suppress(RuntimeError):  # another thread changed it: try at the next time
            every = list(self.captures.graphs.values())
        return [graph for graph in every if graph.key.program == self._keys.program]

    def prepare(self, wanted: planned.Planned) -> str:
        """Capture a graph that another process has captured; return why that failed, or ""."""
        captures, device = self.captures, self._device
        made = planned.inputs_of(wanted, self._layout, planned.Names(captures.owner()))
        if isinstance(made, str):
            return made
        if device.warm_up_calls and self._keys.written:
            return "it writes to tensors, so it can't be run once uncaptured before its capture"
        mode = torch.inference_mode(mode=wanted.inference)
        with torch.no_grad(), mode, device.current(), captures.lock:
            key = self._keys.of(made, self._state())
            if key in captures.graphs:
                return ""
            if device.is_capturing() or len(captures.graphs) >= captures.graphs.limit:
                return f"{len(captures.graphs)} graphs are captured, which is the limit"
            try:
                for _ in range(device.warm_up_calls):
                    self._program(*made)
                graph = self._captured(key, made)
            except Exception as error:  # noqa: BLE001 - for any error, a call will try again
                let_through(error, memory=False)
                return f"{type(error).__name__}: {error}"
            captures.graphs.use(key)
            captures.add(key, graph)
        return ""

    # --- capture

    def _captured(self, key: Key, inputs: Sequence[Any]) -> CapturedGraph:
        if self._kernels is not None:
            self._kernels.before_capture(inputs)
        started = time.perf_counter()
        keys, clone = self._keys, self.captures.options.clone_output
        with capture_device.capturing:
            buffers, transfers = self._buffers(key, inputs), self._transfers(inputs)
            given = list(inputs)
            for buffer in (*buffers, *transfers):
                given[buffer.position] = buffer.tensor
            for position in keys.values:
                # A copy with the key's number, because a replay on the CPU reads the number again.
                given[position] = inputs[position].clone()
            pool = self._pool_of_graph()
            tasks = self._recorder(given)
            with tasks.recording() if tasks is not None else contextlib.nullcontext():
                captured = self._on_device(given, pool)
            try:
                outputs = Outputs(captured.returned, given, self._constants, clone=clone)
            except Exception:
                captured.graph.reset()
                raise
        places = (inputs[i] for i, _ in key.places)
        nbytes = outputs.nbytes() if captured.nbytes is None else captured.nbytes
        nbytes += sum(buffer.nbytes() for buffer in (*buffers, *transfers))
        return CapturedGraph(
            key=key,
            device=self._device,
            graph=captured.graph,
            pool=pool,
            buffers=buffers,
            transfers=transfers,
            outputs=outputs,
            written=keys.written,
            places=tuple(runtime.StorageReference(t) for t in places if t.numel()),
            kept=tuple(given[i].detach() for i in (*keys.kept, *keys.values)),
            tasks=tasks,
            tally=Tally(self._plan(key, inputs), nbytes, time.perf_counter() - started),
        )

    def _plan(self, key: Key, inputs: Sequence[Any]) -> planned.Planned:
        """The data with which another process captures the same graph."""
        names = planned.Names(self.captures.owner())
        return planned.describe(self._layout, self._keys, key, inputs, names)

    def _recorder(self, given: list[Any]) -> Recorder | None:
        """The recorder of calls whose lengths each replay updates; None if there are no lengths.

        Replaces the numbers among `given` that are lengths by `Length` objects.
        """
        lengths, tables = self._keys.lengths, self._keys.tables
        updates = self._device.updates() if lengths or tables else None
        if updates is None:
            return None
        for position in lengths:
            given[position] = Length.of_input(position, int(given[position]))
        return Recorder(updates, {position: given[position] for position in tables})

    def _buffers(self, key: Key, inputs: Sequence[Any]) -> tuple[Buffer, ...]:
        written = {*self._keys.written}
        # Created outside inference mode, or calls outside inference mode could not fill them.
        with torch.inference_mode(mode=False):
            buffers = tuple(
                Buffer.like(i, inputs[i], back=i in written) for i in self._keys.buffered(key)
            )
        fill(buffers, inputs)
        return buffers

    def _transfers(self, inputs: Sequence[Any]) -> tuple[Buffer, ...]:
        device = f"{self._device.kind}:{self._device.index}"
        with torch.inference_mode(mode=False):
            buffers = tuple(
                Buffer.like(i, inputs[i], back=False, device=device) for i in self._keys.hosted
            )
        transfer(buffers, inputs)
        return buffers

    def _on_device(self, inputs: Sequence[Any], pool: Any) -> Captured:
        return self._device.capture(
            self._to_capture(),
            inputs,
            written=self._keys.written,
            constants=self._constants,
            pool=pool,
            options=self.captures.options,
        )

    def _to_capture(self) -> Callable[..., Any]:
        return self._program

    def _state(self) -> Hashable:
        """What a captured graph depends on besides the inputs."""
        return self._device.state()

    def _pool_of_graph(self) -> Any:
        options = self.captures.options
        if options.use_graph_pool is not None:
            return options.use_graph_pool
        if not options.reuse_graph_pool_in_same_fx:
            return self._device.new_pool()
        if not any(graph.pool is self._pool for graph in self.captures.graphs.values()):
            self._pool = self._device.new_pool()  # a pool is freed with the last graph in it
        return self._pool


def _kernels_of(
    program: Callable[..., Any], layout: Layout, captures: Captures, device: Device
) -> StaticKernels | None:
    if not captures.options.static_kernel_compile or device.kind != "npu":
        return None
    from npugx_cache.backend.static_kernels import kernels_of  # few functions ask for any

    return kernels_of(program, layout, captures, device)
