"""Passes that run a user's function on the graph; and the pass that dumps results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from npugx_cache.backend import lowering, operators
from npugx_cache.backend.passes import layout
from npugx_cache.errors import PassError
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.portable import NotPortable

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from npugx_cache.backend.options import Options
    from npugx_cache.backend.passes import Pass


def custom_pass(name: str, function: Callable[..., Any], options: Options) -> Pass:
    """Make a pass that calls `function(graph_module, example_inputs, options)`.

    `name` is the option that holds the function. The example inputs are the traced values of the
    placeholders. The pass raises PassError if the function raises, if the graph is invalid
    afterwards, and if the function changed the graph's inputs.
    """

    def run(graph: fx.Graph) -> int:
        module: Any = graph.owning_module
        before, inputs = _shape(graph), _placeholders(graph)
        try:
            function(module, [node.meta.get("val") for node in inputs], options)
            module.graph.lint()
        except NotPortable:
            raise  # a pass of ours that calls those of an engine
        except Exception as error:
            let_through(error)
            raise PassError(f"option {name!r}: {function!r} raised {error!r}") from error
        if [node.name for node in _placeholders(module.graph)] != [node.name for node in inputs]:
            raise PassError(f"option {name!r}: {function!r} changed the inputs of the graph")
        for node in module.graph.nodes:
            if node.op == "call_function" and "val" not in node.meta:
                lowering.trace_value(node)
        return len(before ^ _shape(module.graph))

    return run


def _placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _shape(graph: fx.Graph) -> set[tuple[str, str, str, str]]:
    return {(n.name, str(n.target), str(n.args), str(n.kwargs)) for n in graph.nodes}


# --- data dump: a call after every call, which writes the result to a file


def dump_results(graph: fx.Graph, *, folder: str) -> int:
    """Add calls that write the result of each call into `folder`; returns how many.

    The path is made absolute, because the program contains it and may run in another folder.
    """
    where = str(Path(folder).absolute())
    calls = [node for node in graph.nodes if node.op == "call_function"]
    results = [node for node in calls if layout.tensor(node) is not None]
    for node in results:
        with graph.inserting_after(node):
            graph.call_function(operators.dump, (node, node.name, where)).meta["val"] = None
    return len(results)
