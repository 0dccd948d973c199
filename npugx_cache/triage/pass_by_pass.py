"""Runs a graph after each of its passes, to find the first pass that changes the results."""

from __future__ import annotations

import copy
from functools import partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from npugx_cache.backend import engines, frame_shims, inner_tensors, lowering, operators
from npugx_cache.backend.graph import to_program
from npugx_cache.backend.runtime import bind_program
from npugx_cache.portable import NotPortable
from npugx_cache.private import streams, vendor_scopes
from npugx_cache.triage import compared, reached

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npugx_cache.api import CachedFunction
    from npugx_cache.backend.passes import Pass
    from npugx_cache.config import Settings
    from npugx_cache.key.recipe import Recipe
    from npugx_cache.triage.events import Events
    from npugx_cache.triage.plan import Plan

AS_TRACED = "as traced"


class Step(NamedTuple):
    """A graph after a pass, or as it was traced; `error` if the pass raised."""

    name: str
    graph: fx.GraphModule
    error: str | None = None


class Fault(NamedTuple):
    """The first pass after which a graph gives other results, or that fails.

    `inputs` are those of the graph `before`. raises: whether the pass or its graph raises.
    """

    recipe: Recipe
    at: int
    name: str
    before: fx.GraphModule
    inputs: Sequence[Any]
    raises: bool

    @property
    def run_pass(self) -> Pass:
        """The pass itself."""
        return list(passes(self.recipe))[self.at][1]


def passes(recipe: Recipe) -> list[tuple[str, Pass]]:
    return list(engines.load(recipe.backend).passes(recipe.options, False))


class PassByPass:
    """Runs calls by the graph as it was traced; at the call at fault, also by that of each pass."""

    def __init__(self, plan: Plan, events: Events) -> None:
        self._plan, self._events = plan, events
        self._compiled: dict[int, Callable[..., Any]] = {}
        self._number = 0

    def adapt_recipe(self, recipe: Recipe, settings: Settings) -> tuple[Recipe, Settings]:
        return recipe, settings

    def about(self, cached: CachedFunction[..., Any], recipe: Recipe) -> dict[str, Any]:
        del cached, recipe
        return {}

    def run(
        self,
        cached: CachedFunction[..., Any],
        recipe: Recipe,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        number: int,
    ) -> Any:
        del cached
        self._number = number
        if id(recipe.function) not in self._compiled:
            self._compiled[id(recipe.function)] = torch.compile(
                recipe.function,
                backend=partial(self._steps, recipe),
                fullgraph=True,
                dynamic=recipe.dynamic,
            )
        return self._compiled[id(recipe.function)](*args, **kwargs)

    def _steps(
        self, recipe: Recipe, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        streams.make_waits_operators(graph_module)
        vendor_scopes.replace(graph_module, operators.scope_operator)
        lowered = lowering.lower(graph_module, example_inputs, dict(recipe.decompositions))
        steps = [Step(AS_TRACED, snapshot(lowered))]
        for name, run in passes(recipe):
            self._events.write("pass", name=name)
            try:
                run(lowered.graph)
            except Exception as error:  # noqa: BLE001 - it is what we look for
                text = f"{type(error).__qualname__}: {error}"
                steps.append(Step(name, snapshot(lowered), text))
                break
            steps.append(Step(name, snapshot(lowered)))
        program = runnable(steps[0].graph)

        def run_program(*inputs: Any) -> Any:
            if self._number == self._plan.at_fault:
                self._number = -1  # a call may run several graphs
                self._look(recipe, steps, inputs)
            return program(*inputs)

        return inner_tensors.taking_apart(run_program, lowered.meta.get(lowering.PARTS, ()))

    def _look(self, recipe: Recipe, steps: Sequence[Step], inputs: Sequence[Any]) -> None:
        expected = values(runnable(steps[0].graph), inputs)
        for at, (before, step) in enumerate(pairwise(steps)):
            self._events.write("running", name=step.name)
            detail, raises = step.error, step.error is not None
            if not raises:
                try:
                    outcome = compared.worst(expected, values(runnable(step.graph), inputs))
                except Exception as error:  # noqa: BLE001 - it is what we look for
                    detail, raises = f"{type(error).__qualname__}: {error}", True
                else:
                    detail = outcome.detail if outcome.kind == "different" else None
            if detail is not None:
                fault = Fault(recipe, at, step.name, before.graph, inputs, raises)
                self._tell(fault, step, detail)
                return
        self._events.write("no fault", passes=[step.name for step in steps[1:]])

    def _tell(self, fault: Fault, step: Step, detail: str) -> None:
        from npugx_cache.triage import minimised

        folder = Path(self._plan.folder) / "graphs"
        folder.mkdir(exist_ok=True)
        for when, graph in (("before", fault.before), ("after", step.graph)):
            graph.recompile()
            text = graph.print_readable(print_output=False)
            (folder / f"{when}_{fault.name}.txt").write_text(text + "\n")
        self._events.write("fault", name=fault.name, detail=detail, raises=fault.raises)
        written = minimised.write(fault, self._plan)
        if written is not None:
            self._events.write("program", **written._asdict())


def snapshot(graph_module: fx.GraphModule) -> fx.GraphModule:
    return fx.GraphModule(graph_module, copy.deepcopy(graph_module.graph))


def runnable(graph_module: fx.GraphModule) -> Callable[..., Any]:
    """The program that the backend would run for the graph; or fx runs it, if it has no program."""
    try:
        program, constants = to_program(graph_module)
    except NotPortable:
        graph_module.recompile()
        return graph_module.forward
    return bind_program(program, constants, frame_shims.handed_over_by_dynamo)


def values(program: Callable[..., Any], inputs: Sequence[Any]) -> dict[str, Any]:
    """What the program gives for copies of the inputs, and what it leaves in them."""
    given = copies(inputs)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = reached.leaves(program(*given), "result")
    after = {f"input {at} after the call": value for at, value in enumerate(given)}
    kept = {**found, **after}
    return {
        name: reached.copy_to_host(value)
        for name, value in kept.items()
        if isinstance(value, torch.Tensor) and reached.can_be_compared(value)
    }


def copies(inputs: Sequence[Any]) -> list[Any]:
    """Copies of tensors that share memory where the tensors do."""
    storages: dict[int, torch.UntypedStorage] = {}

    def copy_tensor(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return value
        own = value.detach().untyped_storage()
        if own.data_ptr() not in storages:
            storages[own.data_ptr()] = own.clone()  # type: ignore[no-untyped-call]
        blank = torch.empty(0, dtype=value.dtype, device=value.device)
        place = storages[own.data_ptr()]
        return blank.set_(place, value.storage_offset(), value.size(), value.stride())

    with torch.no_grad():
        return [copy_tensor(value) for value in inputs]


def with_constants_as_inputs(
    graph_module: fx.GraphModule, inputs: Sequence[Any]
) -> tuple[fx.GraphModule, list[Any]] | None:
    """The graph with inputs in the place of its constants; None if it holds other graphs."""
    lifted, given = snapshot(graph_module), list(inputs)
    *_, last = (None, *lifted.graph.find_nodes(op="placeholder"))
    for node in lifted.graph.find_nodes(op="get_attr"):
        value = attrgetter(str(node.target))(graph_module)
        if not isinstance(value, torch.Tensor):
            return None
        root = last.next if last is not None else next(iter(lifted.graph.nodes))
        with lifted.graph.inserting_before(root):
            last = lifted.graph.placeholder(node.name)
        node.replace_all_uses_with(last)
        lifted.graph.erase_node(node)
        given.append(value)
    lifted.recompile()
    return lifted, given
