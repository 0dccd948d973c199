"""Compiles a graph to a callable without the cache, for `compile_fx` and `dynamo_backend`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache import location
from npugx_cache.backend import (
    capture,
    engines,
    frame_shims,
    inference_only,
    inner_tensors,
    lowering,
    operators,
    options,
)
from npugx_cache.backend.capture_layout import layout_of
from npugx_cache.backend.graph import to_program
from npugx_cache.backend.passes import effects
from npugx_cache.backend.passes.copies import COPY
from npugx_cache.backend.runtime import bind_program
from npugx_cache.errors import BackendUnavailable
from npugx_cache.events import logger
from npugx_cache.portable import NotPortable
from npugx_cache.private import streams, vendor_scopes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx


def compile_graph(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any] | None,
    user_options: Mapping[str, Any] | options.Options | None,
    *,
    engine: str = "npugraph_ex",
    from_dynamo: bool = False,
    decompositions: Mapping[Any, Any] | None = None,
) -> Callable[..., Any]:
    """See `npugx_cache.backend.compile_fx`.

    from_dynamo: the graph comes from Dynamo, so it is not functionalised, and Dynamo's guards check
    the sizes of the inputs at each call.
    """
    if isinstance(user_options, options.Options):
        checked = user_options
    else:
        checked = options.parse(user_options)
    distinct = not from_dynamo and _is_functionalised(graph_module.graph)
    if from_dynamo:
        streams.make_waits_operators(graph_module)
        vendor_scopes.replace(graph_module, operators.scope_operator)
    static = lowering.static_inputs(graph_module, example_inputs)
    given = graph_module
    try:
        if example_inputs is None:
            graph_module = lowering.traced_alike(graph_module)
        else:
            graph_module = lowering.lower(graph_module, example_inputs, decompositions)
        engines.load(engine).optimise(graph_module, checked, distinct_inputs=distinct)
    except (lowering.NotKept, NotPortable) as error:
        reason = str(error)
        if isinstance(error, lowering.NotKept):
            place = location.of_text(error.stack)
            reason = location.reason(error.what, place, "do this outside of it")
        logger.warning("a graph runs without optimisation: %s", reason)
        return given.forward
    parts = graph_module.meta.get(lowering.PARTS, ())
    static = inner_tensors.positions(static, parts)
    try:
        program, constants = to_program(graph_module)
    except NotPortable:
        # It has random numbers or control flow, which fx can run.
        return inner_tensors.taking_apart(graph_module.forward, parts)
    layout = layout_of(graph_module, static)
    run = capture.runner_of(
        bind_program(program, constants, frame_shims.handed_over_by_dynamo),
        layout if from_dynamo else layout.unguarded(),
        tuple(constants.values()),
        engines.captures_for(engine, "a compiled graph", checked),
    )
    return inner_tensors.taking_apart(run, parts)


def _is_functionalised(graph: fx.Graph) -> bool:
    """Whether the only writes of an aten graph are copies into its inputs at the end.

    AOTAutograd makes such graphs. It knows which inputs may overlap, and moves all reads before
    the copies.
    """
    copying = False
    for node in graph.nodes:
        done = effects.of(node)
        if done.unknown:
            return False
        if done.written:
            copying = node.target == COPY and node.args[0].op == "placeholder"
            if not copying:
                return False
        elif copying and node.op != "output" and not done.is_view:
            return False
    return copying


def compile_for_dynamo(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any
) -> Callable[..., Any]:
    """See `npugx_cache.backend.dynamo_backend`.

    Raises BackendUnavailable for arguments other than `options`.
    """
    unknown = sorted(set(kwargs) - {"options", "mode"})
    if unknown or kwargs.get("mode") is not None:
        raise BackendUnavailable(f"the npugx backend takes options, not {unknown or ['mode']}")
    gradients = inference_only.needing_grad(graph_module)
    inference_only.call_without_grad(graph_module)
    run = compile_graph(graph_module, example_inputs, kwargs.get("options"), from_dynamo=True)
    return inference_only.for_inference(run, gradients)
