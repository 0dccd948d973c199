"""Replaces the scopes of torch_npu's own compiler in a graph of Dynamo by ours.

A scope is a block in which a setting holds, such as a limit of cores. In a trace, each scope leaves
two calls that do nothing by themselves: one at its beginning, with its settings as texts and
perhaps a stream, and one at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

_CORES = ["_op_aicore_num", "_op_vectorcore_num"]
_LEVEL = ["_op_deterministic_level"]
_MARKER = "_is_core_limit_scope_marker"
"""An attribute of the function that begins a scope for a given stream."""


class _Beginning(NamedTuple):
    """The beginning of one of our scopes: the names of the operators that begin and end it.

    `stream` is the node of the stream that the scope was given, or None.
    """

    begin: str
    settings: tuple[int, ...]
    end: str
    stream: fx.Node | None


def begins(node: fx.Node) -> bool:
    return node.op == "call_function" and (
        _operator(node).startswith("npugraph_ex.scope_enter") or is_marker(node.target)
    )


def is_marker(target: object) -> bool:
    """Whether a function is the one of torch_npu that begins a scope for a given stream."""
    return hasattr(target, _MARKER)


def replace(graph_module: fx.GraphModule, operator: Callable[[str], Any]) -> None:
    """Replace all scopes by ours, or none of them if one has no counterpart.

    `operator` returns our operator of a name.
    """
    graph = graph_module.graph
    found = {node: _beginning(node) for node in graph.nodes if begins(node)}
    if not found or None in found.values():
        return
    open_scopes: list[str] = []
    for node in list(graph.nodes):
        beginning = found.get(node)
        if beginning is not None:
            _begin(node, operator(beginning.begin), beginning)
            open_scopes.append(beginning.end)
        elif _operator(node).startswith("npugraph_ex.scope_exit") and open_scopes:
            _insert(node, operator(open_scopes.pop()), (), node.meta)
            graph.erase_node(node)
    graph_module.recompile()


def _beginning(node: fx.Node) -> _Beginning | None:
    *given, names, texts = node.args
    stream: Any = given[0] if given else None
    numbers = _numbers(texts)
    if names == _CORES and min(numbers, default=0) >= 1 and _has_label(stream):
        return _Beginning("limit_cores", numbers, "restore_cores", stream)
    if names == _LEVEL and numbers in [(0,), (1,), (2,), (3,)]:
        return _Beginning("set_determinism", numbers, "restore_determinism", None)
    return None


def _has_label(stream: Any) -> bool:
    """Whether no stream was given, or one that Dynamo has numbered."""
    return stream is None or _name(stream) == "get_external_object_by_index"


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", ""))


def _numbers(texts: Any) -> tuple[int, ...]:
    return tuple(int(text) for text in texts if isinstance(text, str) and text.isdecimal())


def _begin(node: fx.Node, operator: Any, beginning: _Beginning) -> None:
    """Insert the calls that begin a scope.

    Our operator limits the cores of the current stream. So for a scope of a given stream, the
    operator stands in a block on that stream.
    """
    stream, meta = beginning.stream, node.meta
    if stream is None:
        _insert(node, operator, beginning.settings, meta)
    else:
        npu: Any = vars(torch)["npu"]
        current = _insert(node, npu.current_stream, (None,), meta)
        _insert(node, npu.set_stream, (stream,), meta)
        custom = {**(meta.get("custom") or {}), "stream": stream.args[0]}
        inside = {**meta, "custom": custom}
        _insert(node, operator, beginning.settings, inside)
        _insert(node, npu.set_stream, (current,), inside)
    node.graph.erase_node(node)


def _insert(before: fx.Node, target: Any, args: Sequence[Any], meta: dict[str, Any]) -> fx.Node:
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, tuple(args))
    node.meta = dict(meta)
    return node


def _operator(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_function" else ""
