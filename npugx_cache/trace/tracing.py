"""Runs Dynamo, and reads what Dynamo returns: with private torch names that only a trace needs.

`trace.dynamo` makes one flat record of it. Only these two modules look into Dynamo's output; the
hooks of `trace.observe` see the trace from inside. Importing this module loads the compiler; only
`npugx_cache.trace` may do so.
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch._dynamo.config as dynamo_config
from torch._dynamo import convert_frame, trace_rules
from torch._dynamo import guards as dynamo_guards
from torch._dynamo import source as sources
from torch._dynamo.bytecode_transformation import _cached_cleaned_instructions
from torch._dynamo.convert_frame import CaptureOutput, fullgraph_capture
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import dict_keys_getitem, dynamo_timed, get_metrics_context
from torch._guards import Guard, Source, TracingContext, tracing
from torch.fx import _lazy_graph_module
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from npugx_cache.backend import subgraphs
from npugx_cache.backend.lowering import (
    HELD,
    PARTS,
    RESHAPED,
    TORCHS_NAMESPACES,
    NotKept,
    lower,
)
from npugx_cache.private.runtime import operator_name
from npugx_cache.trace.data_sizes import write_assumptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from npugx_cache.backend.lowering import Told

__all__ = [
    "HELD",
    "PARTS",
    "RESHAPED",
    "CaptureOutput",
    "ConstraintViolationError",
    "NotKept",
    "Source",
    "sources",
]

dict_key_at: Any = dict_keys_getitem
"""Gives the n-th key as Dynamo counts, which ignores what `move_to_end` did."""


@contextlib.contextmanager
def _dynamic_shapes(dynamic: bool | None) -> Iterator[None]:
    """Give `dynamic` the meaning that it has for torch.compile."""
    changes: dict[str, object] = {
        # With it on, the caller frame would call into Dynamo for profiling on every run (P3).
        "record_runtime_overhead": False,
        # Off by default in torch because the steps are unrolled where no fused kernel exists; the
        # alternative here is no graph at all, and a compile happens once.
        "allow_rnn": True,
        # On before torch 2.12: a list that is a default, which calls change, would be another one
        # in each call.
        "skip_guards_on_constant_func_defaults": False,
    }
    if not __debug__:
        # `python -O` compiles no assertion, and torch before 2.12 fails where it looks for one.
        changes["rewrite_assert_with_torch_assert"] = False
    if dynamic is True:
        changes["assume_static_by_default"] = False
    elif dynamic is False:
        changes |= {"automatic_dynamic_shapes": False, "assume_static_by_default": True}
    with dynamo_config.patch(changes):
        yield


def capture(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    dynamic: bool | None,
) -> CaptureOutput:
    """Trace one call with Dynamo as a full graph; raises `TorchDynamoException`."""
    # Dynamo remembers the instructions of equal code. Functions inside the traced one would then be
    # those of another file with the same text, and the entry would depend on that other file.
    _cached_cleaned_instructions.cache_clear()
    with (
        get_metrics_context(),
        dynamo_timed("npugx_cache.capture"),
        _dynamic_shapes(dynamic),
        _own_global_state(),
    ):
        drawn = random.getstate()  # Dynamo draws what the code draws
        try:
            with _lazy_graph_module._use_lazy_graph_module(True):  # nobody runs Dynamo's graph
                return fullgraph_capture(function, args, kwargs)
        finally:
            random.setstate(drawn)


@contextlib.contextmanager
def _own_global_state() -> Iterator[None]:
    """Have the guard on torch's global state taken when this trace begins.

    Torch 2.10 keeps the state with which the last `torch.compile` of the process began, and would
    take it for the state of this trace. The trace is then refused if, for example, the grad mode
    was another one.
    """
    before, convert_frame.initial_global_state = convert_frame.initial_global_state, None
    try:
        yield
    finally:
        convert_frame.initial_global_state = before


class Met(NamedTuple):
    """What a trace had met when it ended or was given up, without the graph."""

    guards: list[Guard]
    codes: list[types.CodeType]
    imports: dict[str, str]


def met_by(output: CaptureOutput) -> Met:
    captured = output.graph_capture_output
    guards: Any = captured.output_graph.guards
    return Met(list(guards), list(captured.traced_code), dict(captured.import_sources))


def met_until(error: BaseException) -> Met | None:
    """What Dynamo had met when it raised this error; None for an error from elsewhere."""
    output = getattr(error, "_torch_dynamo_tracer_output", None)
    graph = getattr(output, "output_graph_for_cleanup", None)
    if graph is None:
        return None
    return Met(list(graph.guards), list(graph.traced_code), dict(graph.import_sources))


def is_raised_by_code(error: BaseException) -> bool:
    """Whether traced code or an operator raised, and not Dynamo about something it can't trace."""
    return not isinstance(error, Unsupported) or str(error).startswith(_RAISED)


_RAISED = ("Observed exception", "Data-dependent assertion failed")


@dataclass(frozen=True, slots=True)
class MetSoFar:
    """What a trace has met up to the line that it has come to, complete.

    `sizes` and `key_ordered` as in `Guards`; `shapes` as `shape_conditions` gives them, None where
    a size marked as dynamic turned out not to be.
    """

    met: Met
    sizes: Any
    key_ordered: Any
    shapes: tuple[list[str], dict[str, Source]] | None


def met_so_far(graph: Any) -> MetSoFar:
    """Must be called from inside the trace, which can't go on afterwards."""
    met = Met(list(graph.guards), list(graph.traced_code), dict(graph.import_sources))
    try:
        shapes = _shape_conditions(graph)
    except ConstraintViolationError:
        shapes = None
    sizes = dict(graph.input_source_to_sizes_strides)
    return MetSoFar(met, sizes, list(graph.guard_on_key_order), shapes)


def custom_operators(graph_module: torch.fx.GraphModule) -> dict[str, str | None]:
    """Operators in Dynamo's graph that are not torch's own, and the stack of a call of each."""
    return {
        name: stack
        for name, stack in operators_in(graph_module).items()
        if name.partition("::")[0] not in TORCHS_NAMESPACES
    }


def operators_in(graph_module: torch.fx.GraphModule) -> dict[str, str | None]:
    """Registered operators that a graph or the graphs inside it call, without overloads.

    The values are the stack of a call of each.
    """
    found = {}
    for node in subgraphs.nodes_of(graph_module):
        name = operator_name(node.target) if node.op == "call_function" else None
        if name is not None and name[0] in ("op", "packet"):
            full = f"{name[1]}::{name[2]}" if name[0] == "op" else name[1].replace(".", "::")
            found[full] = node.stack_trace
    return found


def lower_output(
    output: CaptureOutput,
    decompositions: dict[Any, Any] | None,
    ran: Told,
    ran_for: Told,
) -> torch.fx.GraphModule:
    """Dynamo's graph as aten operators; `ran` and `ran_for` as `lower` takes them."""
    backend_input = output.backend_input
    assert backend_input is not None
    context = TracingContext(backend_input.fake_mode)
    context.tensor_to_context = backend_input.tensor_to_context
    with tracing(context):
        inputs = backend_input.example_inputs
        graph = lower(backend_input.graph_module, inputs, decompositions, ran, ran_for)
    write_assumptions(graph, backend_input.fake_mode.shape_env)
    return graph


def graph_inputs(output: CaptureOutput) -> list[Any]:
    """The values of this call that the graph gets."""
    backend_input = output.backend_input
    return list(backend_input.example_inputs) if backend_input is not None else []


class _Collected(dynamo_guards.CheckFunctionManager):
    """Builds torch's own guard manager and keeps the guards it was built from.

    Not the builder: it holds the traced frame's locals, and torch keeps managers alive for ever
    through the finalizers it puts on guarded objects.
    """

    ordered: list[Guard]

    def serialize_guards(
        self, builder: Any, sorted_guards: list[Guard], output_graph: Any
    ) -> bytes:
        del builder, output_graph
        self.ordered = list(sorted_guards)
        return b""


class Guards(NamedTuple):
    """Torch's guards of one trace.

    `check` takes the locals of a frame and runs the guards. `sizes` maps the source of a tensor to
    its size and stride, which may be symbolic; `key_ordered` are the sources of dicts whose order
    of keys the trace relied on.
    """

    check: Callable[[Mapping[str, Any]], bool]
    rows: list[Guard]
    sizes: Any
    key_ordered: Any


def guards_of(output: CaptureOutput, code: Any) -> Guards:
    """Build torch's guards for a trace; AssertionError if they refuse the very frame traced.

    Must run after lowering, which may add guards on symbolic sizes. Under a default device torch's
    guards can't be checked outside of its own frame evaluation; ours are, by the caller.
    """
    graph = output.graph_capture_output.output_graph
    # Torch would also measure how long its check takes, and empties the processor's caches before:
    # 30 ms, a tenth of the compile of a small function.
    graph.skip_guards_check = True
    with get_metrics_context(), dynamo_timed("npugx_cache.conditions"), torch.no_grad():
        manager = _Collected(code, graph, save_guards=True)
        check, sizes = manager.guard_manager.check, graph.input_source_to_sizes_strides
        if not torch._C._len_torch_function_stack() and not check(graph.local_scope):
            raise AssertionError(_failure_of(manager.guard_manager, graph.local_scope))
    return Guards(check, manager.ordered, sizes, graph.guard_on_key_order)


def _failure_of(manager: Any, scope: dict[str, Any]) -> str:
    reason = dynamo_guards.get_guard_fail_reason_helper(manager, scope, None, backend=None)
    return f"they refuse the call that was traced: {reason}"


class GuardRow(NamedTuple):
    """One guard of torch's: its kind, the source of the guarded value, and its parameters."""

    kind: str
    source: Source
    parameters: dict[str, Any]


def guard_row(guard: Guard) -> GuardRow:
    create: Any = guard.create_fn
    source: Any = guard.originating_source
    parameters: dict[str, Any] = {}
    if isinstance(create, functools.partial):
        create, parameters = create.func, dict(create.keywords)
    if create.__name__ == "HASATTR" and "attr" not in parameters:
        # Before torch 2.12 the source of such a guard is the attribute, whether it exists or not.
        return GuardRow("HASATTR", source.base, {"attr": source.member})
    return GuardRow(create.__name__, source, parameters)


def line(guard: Guard) -> int:
    """Where torch defines the guard's kind, which is the order in which torch checks kinds."""
    return guard.inner_create_fn().__code__.co_firstlineno


def is_on_mode_stack(source: Any) -> bool:
    """Whether a source leads through the stack of active torch-function modes."""
    while hasattr(source, "base"):
        source = source.base
    return isinstance(source, sources.TorchFunctionModeStackSource)


def raw_conditions(output: CaptureOutput) -> tuple[object, ...]:
    """All that Dynamo will build guards of, in a form that two traces of one call can share."""
    graph: Any = output.graph_capture_output.output_graph
    rows = (guard_row(guard) for guard in graph.guards)
    return (
        {
            (row.kind, _strip_counters(row.source.name), _strip_counters(repr(row.parameters)))
            for row in rows
        },
        {str(guard.expr) for guard in graph.shape_env.guards},
        {_strip_counters(source.name) for source in graph.guard_on_key_order},
        {_strip_counters(s.name): str(v) for s, v in graph.input_source_to_sizes_strides.items()},
    )


def _strip_counters(text: str) -> str:
    """The text without the counters of one process, and without the addresses of objects.

    The sources of one call lead to the same objects, so the addresses say nothing more.
    """
    return re.sub(r" at 0x[0-9a-f]+|(?<=_c)\d+\b|(?<=__builtins_dict___)\d+", "", text)


GLOBAL_IN_NAME = re.compile(r"G\['(\w+)'\]")
"""A global in the name of a source."""


def full_name(source: Any) -> str:
    """What Dynamo calls a source."""
    try:
        return str(source.name() if callable(source.name) else source.name)
    except Exception:  # noqa: BLE001 - some sources refuse to be named
        return f"a {type(source).__name__}"


def source_name(source: Any) -> str:
    """What a source is called in the traced code, for people."""
    name = re.sub(r"[LG]\['(\w+)'\]", r"\1", full_name(source))
    name = re.sub(r"___from_numpy\(([^()]*)\)", r"\1", name)
    return re.sub(r"___unnamed_scope_\d+_c\d+", "generated code", name)  # the number is an address


def value_at(tx: Any, source: Source) -> Any:
    """The object at a place of the call that is traced; raises what code on the way raises."""
    frame = tx.output.root_tx
    return source.get_value({"G": frame.f_globals, "L": frame.f_locals}, {}, {})


def is_current_stream(source: Source) -> bool:
    return type(source).__name__ == "CurrentStreamSource"  # since torch 2.12


def inner(source: Source | None, path: str) -> Source | None:
    """The source of a tensor that another tensor holds."""
    if source is None:
        return None
    for name in path.split("."):
        source = sources.AttrSource(source, name)
    return source


def is_list_of_inner(source: Source) -> bool:
    """Whether a source is the list of the tensors that a tensor says it holds."""
    return type(source) is sources.SubclassAttrListSource


def is_in_table(value: Any) -> bool:
    """Whether Dynamo takes a callable for one that it knows, without a look into its code."""
    return trace_rules.lookup_callable(value) is not None


def is_skipped(value: object) -> bool:
    """Whether Dynamo looks into no code of a function: of one in C, or one that it skips."""
    if isinstance(value, types.BuiltinFunctionType):
        return True
    return isinstance(value, types.FunctionType) and bool(trace_rules.check(value))


def is_aliasing_guarded(first: Source, second: Source) -> bool:
    """Whether torch itself checks the aliasing of two sources."""
    skip: Any = vars(dynamo_guards)["is_from_skip_guard_source"]
    return not (skip(first) or skip(second))


def concrete(values: Any) -> list[int | None]:
    """Sizes or strides with None where they are symbolic."""
    return list(dynamo_guards.convert_to_concrete_values(values))


def shape_conditions(output: CaptureOutput) -> tuple[list[str], dict[str, Source]]:
    """Conditions on symbolic sizes as Python, and the source behind each variable in them.

    Call it before `guards_of`, which freezes the shape environment. Raises
    `ConstraintViolationError` where a size marked as dynamic turned out not to be.
    """
    return _shape_conditions(output.graph_capture_output.output_graph)


def _shape_conditions(graph: Any) -> tuple[list[str], dict[str, Source]]:
    shape_env: Any = graph.shape_env
    names: dict[Source, str] = {}

    def name_of(source: Source) -> str:
        if source.guard_source is torch._guards.GuardSource.CONSTANT:
            return source.name
        return names.setdefault(source, f"v{len(names)}")

    fakes = shape_env.tracked_fakes or []
    parts = shape_env.produce_guards_verbose(
        [fake.fake for fake in fakes],
        [fake.source for fake in fakes],
        input_contexts=[fake.symbolic_context for fake in fakes],
        source_ref=name_of,
        ignore_static=True,
        langs=("python",),
    )
    return list(parts[0].exprs), {name: source for source, name in names.items()}
