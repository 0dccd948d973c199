"""What a miss does: trace one call, optimise its graph, and pack it into an artifact."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from npugx_cache import location, version
from npugx_cache.backend import engines, subgraphs
from npugx_cache.backend.capture.layout import Role
from npugx_cache.backend.codegen import operator_names, source_text
from npugx_cache.backend.program import COLLECTIVES, HIGHER_ORDER, STREAMS
from npugx_cache.conditions.source_facts import group_fact, operator_fact
from npugx_cache.entry import frame
from npugx_cache.entry.artifact import Artifact, Bindings
from npugx_cache.entry.failed_run import lasting_effect
from npugx_cache.entry.first_result import Rounding
from npugx_cache.entry.readable import Readable, render
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.passing import is_passing
from npugx_cache.portable import NotPortable, devices
from npugx_cache.private import compile_lock, runtime
from npugx_cache.trace.outcomes import Untraceable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import fx

    from npugx_cache.backend.inductor.library import Library
    from npugx_cache.backend.options import Options
    from npugx_cache.backend.program import Program
    from npugx_cache.conditions import Check
    from npugx_cache.conditions.evaluate import Scope
    from npugx_cache.entry.size_history import Known
    from npugx_cache.events.progress import Progress
    from npugx_cache.key.fingerprint import Factor
    from npugx_cache.key.recipe import Recipe, Shaping
    from npugx_cache.portable.devices import Accelerator, Rename
    from npugx_cache.trace.lowered import PortableGraph
    from npugx_cache.trace.outcomes import LocalOnly, SetUpFirst

    _Outcome = TypeVar("_Outcome", LocalOnly | Untraceable, LocalOnly | Untraceable | SetUpFirst)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled call. `seconds` is the `WorkTime` of trace, passes and packing: a hit saves it.

    `unrepeatable` says why the call may not be made once more, or is None. `rounding` says how far
    the results of the graph may be from those of the function.
    """

    artifact: Artifact
    unrepeatable: str | None
    rounding: Rounding
    seconds: float
    local_only: Callable[[Exception], LocalOnly | Untraceable]
    """What to do with the same call if its artifact turns out not to bind, for that reason."""


def compile_call(
    recipe: Recipe,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    scope: Scope,
    state: Mapping[str, Any],
    factors: tuple[Factor, ...],
    known: Known,
    progress: Progress,
) -> Compiled | LocalOnly | Untraceable | SetUpFirst:
    """Compile one call; nothing of it runs on real tensors. Call it under `torch.no_grad()`.

    `known` says which sizes were met before; it matters only with `dynamic=None`.
    """
    progress.begin("waiting for other threads that compile")
    with compile_lock.tracing_alone(), compile_lock.Disturbance() as disturbance:
        outcome = None
        try:
            if not disturbance.reason():
                outcome = _trace_and_pack(
                    recipe, args, kwargs, scope, state, factors, known, progress
                )
        except Exception as error:
            let_through(error)
            if not disturbance.reason():
                raise
        reason = disturbance.reason()
        if outcome is None or reason:
            return Untraceable(reason=reason or "", lasting=False)
        return outcome


def _trace_and_pack(
    recipe: Recipe,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    scope: Scope,
    state: Mapping[str, Any],
    factors: tuple[Factor, ...],
    known: Known,
    progress: Progress,
) -> Compiled | LocalOnly | Untraceable | SetUpFirst:
    from npugx_cache.interpreter.work_time import WorkTime

    try:
        from npugx_cache.trace import call
    except (ImportError, AttributeError) as error:
        if is_passing(error) or version.unserved_torch(torch.__version__) is None:
            raise
        lacks = str(error).partition(" (")[0]  # without the path of torch
        return Untraceable(reason=f"this torch lacks what a trace needs: {lacks}", lasting=True)
    worked = WorkTime()
    progress.begin("tracing and lowering")
    traced = call.trace(
        recipe.function,
        args,
        kwargs,
        scope,
        state=state,
        dynamic=recipe.dynamic,
        known=known,
        decompositions=dict(recipe.decompositions),
        shaping=tuple(recipe.shaping_code()),
        optimise=partial(optimise, recipe, progress),
    )
    if not isinstance(traced, call.Traced):
        return _remove_texts(traced, scope)
    progress.begin("packing")
    try:
        artifact = pack(recipe.title, traced, factors)
    except NotPortable as error:
        return _remove_texts(traced.local_only(error), scope)
    seconds = worked.seconds()
    rounding = Rounding.of(traced.graph)
    if any(recipe.options.functions()):
        rounding = rounding._replace(doubt="a pass of the user's may change numbers on purpose")
    return Compiled(
        artifact=artifact,
        unrepeatable=_effect_of(artifact, recipe.options) or traced.unrepeatable,
        rounding=rounding,
        seconds=seconds,
        local_only=traced.local_only,
    )


def _effect_of(artifact: Artifact, options: Options) -> str | None:
    """What a run of the program may do besides giving its results, or None."""
    if options.dump_tensor_data:
        return "it writes its tensors to files"
    layout = artifact.bindings.layout
    if layout is not None and {*layout.roles} == {Role.UNUSED}:
        return "it is not known what its program writes to"
    program = artifact.program
    return lasting_effect(program.operators if program is not None else (), layout)


def _remove_texts(outcome: _Outcome, scope: Scope) -> _Outcome:
    """The outcome with the texts of arguments removed from its reason.

    The reason goes to logs and into the store, and an error message in it may quote an argument.
    """
    from npugx_cache.key.signature import without_texts

    return replace(outcome, reason=without_texts(outcome.reason, scope.frame_locals))


def optimise(
    shaping: Shaping, progress: Progress, graph: fx.GraphModule
) -> tuple[engines.PassReport, ...]:
    """Run the passes of the backend on a lowered graph, in place."""
    progress.begin(_PASSES.get(shaping.backend, "passes"))
    reports = engines.load(shaping.backend).optimise(graph, options=shaping.options)
    progress.begin("guards and source facts")
    return reports


_PASSES = {"inductor": "passes and the C++ compiler", "ge": "the converters to GE, and GE"}


def pack(title: str, traced: PortableGraph, factors: tuple[Factor, ...]) -> Artifact:
    """What is stored of a graph; raises `NotPortable`."""
    made: engines.CompiledLibrary | None = None
    program, constants, code = None, None, ""
    rename = _names_for(traced.conditions.device)
    if traced.graph is not None:
        from npugx_cache.backend.graph import to_program

        program, tensors = to_program(traced.graph, [name for name, _ in traced.inputs])
        program = program.placed(rename)
        constants, code = _constant_bytes(tensors), source_text(program)
        made = traced.graph.meta.get(engines.LIBRARY)
    bindings = _bindings(traced, program, code, made)
    _refuse_checks_after_effects(traced.graph, program, bindings)
    facts = (*_operator_facts(program), *_group_facts(traced.graph))
    conditions = traced.conditions.plus(facts)
    text = render(
        Readable(
            title=title,
            factors=factors,
            conditions=conditions,
            inputs=traced.inputs,
            passes=traced.passes,
            program=program,
            code=code,
            frame=traced.frame,
            compiled=made.words if made else "",
        )
    )
    return Artifact(
        conditions=conditions,
        bindings=bindings.rename_devices(rename),
        constants=constants,
        sizes=traced.sizes,
        program=program,
        library=made.data if made else None,
        readable=text,
    )


def _refuse_checks_after_effects(
    graph: fx.GraphModule | None, program: Program | None, bindings: Bindings
) -> None:
    """Raise `NotPortable` for a graph that may have to be left when it has done something.

    The sizes that data give can be others than the trace assumed; the function then runs the call.
    """
    from npugx_cache.trace.data_sizes import CHECKS_SIZES

    if graph is None or program is None or CHECKS_SIZES not in graph.meta:
        return
    if effect := lasting_effect(program.operators, bindings.layout):
        what = f"a size depends on data, and the graph can't be left for other sizes: {effect}"
        change = "do one of the two outside the cached function"
        place = location.of_text(graph.meta[CHECKS_SIZES])
        raise NotPortable(location.reason(what, place, change))


def _names_for(device: Accelerator | None) -> Rename:
    """How an entry with these conditions renames devices: by index, or as "the current device"."""
    index = runtime.current_index(device.kind) if device and device.index is None else None
    return str if device is None or index is None else devices.to_current(device.kind, index)


def _bindings(
    traced: PortableGraph,
    program: Program | None,
    code: str,
    made: engines.CompiledLibrary | None,
) -> Bindings:
    if traced.graph is None or program is None:
        return Bindings(
            frame=traced.frame,
            program_code=b"",
            operators=(),
            constants=(),
            disable_autocast=False,
            layout=None,
            library=None,
        )
    from npugx_cache.backend.capture_layout import layout_of
    from npugx_cache.backend.runtime import compiled

    return Bindings(
        frame=traced.frame,
        program_code=frame.dump(compiled(code)),
        operators=tuple(zip(operator_names(program), program.operators, strict=True)),
        constants=program.constants,
        disable_autocast=program.disable_autocast,
        layout=layout_of(traced.graph, traced.static),
        library=_with_finish(made) if made else None,
        parts=traced.parts,
    )


def _with_finish(made: engines.CompiledLibrary) -> Library:
    from npugx_cache.backend.runtime import compiled

    return replace(made.library, finish_code=frame.dump(compiled(source_text(made.finish))))


def _operator_facts(program: Program | None) -> tuple[Check, ...]:
    """The schemas of custom operators; torch's own are covered by its version."""
    if program is None:
        return ()
    custom = {
        op
        for op in program.operators
        if op.namespace not in ("", "aten", "prims", "npugx_cache", STREAMS, HIGHER_ORDER)
    }
    return tuple(
        operator_fact(op.namespace, op.name, op.overload or "default") for op in sorted(custom)
    )


def _group_facts(graph: fx.GraphModule | None) -> tuple[Check, ...]:
    """The process groups of collectives: their sizes have become constants of the graph."""
    names: set[Any] = set()
    for node in subgraphs.nodes_of(graph):
        if getattr(node.target, "namespace", "") == COLLECTIVES:
            arguments = dict(zip(runtime.argument_defaults(node.target), node.args, strict=False))
            names.add((arguments | node.kwargs).get("group_name"))
    return tuple(map(group_fact, sorted(names - {None})))


def _constant_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes | None:
    if not tensors:
        return None
    from safetensors.torch import save

    return save({name: tensor.contiguous().cpu().clone() for name, tensor in tensors.items()})
