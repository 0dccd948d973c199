"""Runs Dynamo on one call, and hands out one flat record of the trace.

The record holds the graph, and everything that Dynamo read during the trace without installing a
guard. Nobody else looks into what Dynamo returns.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npugx_cache import location
from npugx_cache.backend import operators, subgraphs
from npugx_cache.backend.lowering import static_inputs
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.passing import is_passing
from npugx_cache.private import runtime, vendor_scopes
from npugx_cache.trace import (
    cacheable_part,
    observer,
    refuse,
    tensor_patches,
    torch_logs,
    tracing,
)
from npugx_cache.trace.caller_frame import item_read_too_late
from npugx_cache.trace.observe import (
    class_caches,
    device_values,
    hook_table,
    identity,
    lstm,
    observation,
    opaque,
    size_memory,
    unkept_calls,
)
from npugx_cache.trace.observe.observation import Question, refusal
from npugx_cache.trace.observe.set_history import Sets
from npugx_cache.trace.observe.set_up_calls import SetUps
from npugx_cache.trace.streams import lost_order

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator

    from torch import fx

    from npugx_cache.entry.size_history import Known
    from npugx_cache.trace.observe.observation import Observation
    from npugx_cache.trace.observe.set_up_calls import Stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTraced:
    """Why a call can't be traced as one graph; `met` is what Dynamo had met by then.

    `lasting` is False where the next try may end otherwise. `raised` is True where the traced code
    or an operator raised, so that the function itself may raise for this call, too. `breaks` is
    True where Dynamo gave up at a line, and had met nothing before that its own guards would not
    see change. `stopped` is the set-up that has to be done before the next try; `observed` and
    `sizes` are then as in `DynamoTrace`.
    """

    reason: str
    met: tracing.Met | None = None
    lasting: bool = True
    raised: bool = False
    breaks: bool = False
    stopped: Stopped | None = None
    observed: tuple[Observation, ...] = ()
    sizes: tuple[list[Any], list[Any]] = ([], [])


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoTrace:
    """One call of `function` as Dynamo traced it.

    `graph` is None for a function without tensor operations. `bytecode` is the caller frame, which
    calls the graph by its name among the globals, `graph_name`. `code` is all the code that Dynamo
    went through, and `imports` the modules that it put into the globals, by the names it gave them.
    `placeholders` are the names of the inputs of the graph, and the sources of their values;
    `static` are the positions of those that are parameters, or that Dynamo takes not to move.
    `methods` are the names of the tensor methods that the graph calls.
    `observed` is what the hooks saw Dynamo read without a guard, and `sizes` what Dynamo knew of
    sizes before and after (`observe.size_memory`). `writes`: the caller frame writes to what was
    there before the call.
    """

    function: types.FunctionType
    graph: fx.GraphModule | None
    graph_name: str | None
    bytecode: types.CodeType
    code: list[types.CodeType]
    imports: dict[str, str]
    placeholders: list[tuple[str, tracing.Source | None]]
    static: tuple[int, ...]
    methods: set[str]
    observed: tuple[Observation, ...]
    sizes: tuple[list[Any], list[Any]]
    writes: bool
    output: tracing.CaptureOutput
    """What Dynamo returned. Only the functions of `tracing` look into it, for what can be asked
    only later, when the graph has been lowered."""


def run(
    function: types.FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    dynamic: bool | None,
    known: Known,
    flipped: str | None = None,
) -> DynamoTrace | NotTraced:
    """Trace one call. `flipped`: as in `set_history.Sets`. Raises what is the user's to catch."""
    with size_memory.of_our_traces(function):
        return _run(function, args, kwargs, dynamic, known, flipped)


def _run(
    function: types.FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic: bool | None,
    known: Known,
    flipped: str | None,
) -> DynamoTrace | NotTraced:
    if reason := hook_table.ON_DYNAMO.obstacle() or observer.PLACES.obstacle():
        return NotTraced(reason=reason)
    sizes = _begin_with(function, known) if dynamic is None else []
    recorder = observation.Recorder()
    recorder.state(Sets).flipped = flipped
    named = zip(function.__code__.co_varnames, args, strict=False)
    frame_locals = {**dict(named), **kwargs}
    try:
        with (
            hook_table.ON_DYNAMO.in_place(),
            _device_hooks() as unseen_devices,
            torch_logs.without_failed_operators(),
            torch_logs.without_headers(),
            observation.recording(recorder),
            observer.PLACES.in_place(),
        ):
            class_caches.forget()
            lstm.mend_states()
            device_values.begin(recorder, unseen_devices)
            output = tracing.capture(function, args, kwargs, dynamic=dynamic)
    except Exception as error:  # noqa: BLE001 - Dynamo raises many kinds; all mean "eager"
        let_through(error)
        observed = recorder.observations()
        if reason := refusal(observed, Question.UNWATCHED):
            return NotTraced(reason=reason)
        if (stopped := recorder.state(SetUps).stopped) is not None:
            return NotTraced(
                reason=stopped.set_up.name,
                stopped=stopped,
                observed=observed,
                sizes=(sizes, size_memory.remembered_sizes(function) if dynamic is None else []),
            )
        unseen = refusal(observed, Question.UNCHECKABLE)
        if passes := is_passing(error):
            first = str(error).partition("\n")[0]
            reason = f"the machine could not do it then, which may pass: {first}"
        elif unseen is not None and unkept_calls.is_from_unkept_call(error):
            reason = cacheable_part.advise(unseen, frame_locals, recorder.stack)
        else:
            stack = getattr(error, "real_stack", None) or ()
            reason = cacheable_part.advise(refuse.of_failure(error), frame_locals, stack)
        return NotTraced(
            reason=reason,
            met=tracing.met_until(error),
            lasting=not passes,
            raised=tracing.is_raised_by_code(error),
            breaks=unseen is None,
        )
    handed, captured = output.backend_input, output.graph_capture_output
    observer.close(recorder, captured.output_graph)
    graph = handed.graph_module if handed is not None else None
    if graph is not None:
        vendor_scopes.replace(graph, operators.scope_operator)
    observed = recorder.observations()
    if reason := refusal(observed, Question.UNWATCHED):  # says something about this process
        return NotTraced(reason=reason)
    refused = refusal(observed, Question.UNCHECKABLE) or _opaque(graph)
    refused = refused or item_read_too_late(captured.bytecode)
    if reason := refused or tensor_patches.refusal(captured.traced_code):
        reason = cacheable_part.advise(reason, frame_locals, recorder.stack)
        return NotTraced(reason=reason, met=tracing.met_by(output))
    nodes = list(graph.graph.nodes) if graph is not None else []
    inputs = [node.name for node in nodes if node.op == "placeholder"]
    origins = captured.output_graph.export_metadata.graph_input_idx_to_local_source
    return DynamoTrace(
        function=function,
        graph=graph,
        graph_name=handed.backend_id if handed is not None else None,
        bytecode=captured.bytecode,
        code=list(captured.traced_code),
        imports=captured.import_sources,
        placeholders=[(name, origins.get(index)) for index, name in enumerate(inputs)],
        static=static_inputs(graph) if graph is not None else (),
        methods={str(n.target) for n in subgraphs.nodes_of(graph) if subgraphs.asks_tensor(n)},
        observed=observed,
        sizes=(sizes, size_memory.remembered_sizes(function) if dynamic is None else []),
        writes=recorder.state(identity.Writes).any,
        output=output,
    )


def _begin_with(function: types.FunctionType, known: Known) -> list[Any]:
    """Tell Dynamo what is known of sizes. Returns all that Dynamo then knows."""
    if known.alone:
        size_memory.forget(function)
    size_memory.recall(function, known.rows)
    return size_memory.remembered_sizes(function)


@contextlib.contextmanager
def _device_hooks() -> Iterator[str | None]:
    """Put the hooks on devices in place, if there is a device; says what they can't see."""
    if runtime.accelerator() is None:
        yield None
        return
    with hook_table.ON_DEVICES.in_place():
        yield hook_table.ON_DEVICES.missing()


def _opaque(graph: fx.GraphModule | None) -> str | None:
    """Why a graph may do something else than eager: Dynamo did not look into a call in it."""
    if graph is None:
        return None
    # Before what names an operator: the vendor's scopes are functions marked allow_in_graph.
    if reason := lost_order(graph):
        return reason
    change = "let it be traced, or make it a torch.library operator"
    for name, stack in opaque.opaque_calls(graph):
        what = f"{name} is not looked into: what it reads has no guards"
        return location.reason(what, location.of_text(stack), change)
    return None
