"""Lets a graph hold tensors whose sizes only their data tell, such as `x.nonzero()` or `x[mask]`.

A trace knows no number for such a size, only a symbol ("unbacked"). Where an operator's result
depends on the number, torch assumes an answer: that a size is not 1, or that two sizes are equal.
Eager looks at the number. So each assumption becomes a call of the graph that raises if the
assumption does not hold, and the function itself then runs the call (`entry/failed_run`).
Importing this module loads the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import canonicalize_bool_expr
from torch.fx.node import map_arg
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import OptimizedPythonReferenceAnalysis

from npugx_cache.backend import subgraphs
from npugx_cache.backend.lowering import COPIED, NotKept
from npugx_cache.backend.passes import aliasing, layout
from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

aten: Any = torch.ops.aten

CHECKS_SIZES = "npugx_checks_sizes"
"""A key of the graph's `meta`. The value is the stack of the first call whose result is checked."""


def write_assumptions(graph_module: fx.GraphModule, shape_env: Any) -> None:
    """Add the checks of all that the trace assumed about sizes that only data tell.

    Changes nothing if no size depends on data. A graph that does something lasting, such as a write
    to an input, must not have checks, because the function can't run the call a second time then;
    `meta[CHECKS_SIZES]` tells `compile` of checks. Raises `NotKept` for an assumption that no call
    can check, and where eager may return a view of memory that the graph copies.
    """
    graph = graph_module.graph
    _refuse_numbers_taken_for_others(graph, shape_env)
    if not any(runtime.depends_on_data(node.meta.get("val")) for node in graph.nodes):
        return
    _refuse_copies_that_are_seen(graph_module)
    writer, checked = _Writer(graph, shape_env), []
    assumed = _drop_checks(graph, shape_env)
    for node in list(graph.nodes):
        if node.op == "output":
            break
        writer.go_to(node)
        if _takes_its_sizes_from_others(node, writer):
            writer.expect_sizes(node)
            checked.append(node)
        for each in [each for each in assumed if writer.knows(each)]:
            assumed.remove(each)
            if not writer.is_true_of_all_sizes(each):
                writer.expect(each)
                checked.append(node)
    if assumed:
        first = next(n for n in graph.nodes if runtime.depends_on_data(n.meta.get("val")))
        what = f"no check can be written for what the trace assumes about a size: {assumed[0]}"
        raise NotKept(what, first.stack_trace)
    if checked:
        graph_module.meta[CHECKS_SIZES] = checked[0].stack_trace or ""
    graph_module.recompile()


def _refuse_numbers_taken_for_others(graph: fx.Graph, shape_env: Any) -> None:
    """Raise `NotKept` if the trace put a size in the place of a number that `.item()` gives.

    `torch._check(number == x.size(0))` makes both one for torch, so that the call in the graph
    which should compare the two compares the number with itself. A size of a tensor that the graph
    makes is compared by `_Writer.expect_sizes`.
    """
    measured = {
        shape_env.unbacked_renamings.get(symbol, symbol)
        for node in graph.nodes
        if isinstance(node.meta.get("val"), torch.Tensor)
        for symbol in node.meta.get("unbacked_bindings") or ()
    }
    for symbol in shape_env.deferred_runtime_asserts:
        other = shape_env.replacements.get(symbol)
        symbols = other.free_symbols if other is not None else set()
        if symbols and not symbols <= measured and symbol not in measured:
            what = f"a number that only data tell is checked to be {other}, and taken for that"
            stack = next((n.stack_trace for n in graph.nodes if n.stack_trace), None)
            raise NotKept(what, stack, "compare the number outside of the cached function")


def _drop_checks(graph: fx.Graph, shape_env: Any) -> list[Any]:
    """All that the trace assumed. Drops the calls with which Dynamo checks a part of it."""
    rows = shape_env.deferred_runtime_asserts.values()
    assumed = {_canonical(each.expr, shape_env): None for row in rows for each in row}
    for node in reversed(list(graph.nodes)):
        if node.target is aten._assert_scalar.default and isinstance(node.args[0], fx.Node):
            condition = node.args[0]
            value = condition.meta.get("val")
            if isinstance(value, torch.SymBool) and _is_among(assumed, value, shape_env):
                graph.erase_node(node)
                _erase_unused(condition)
    return list(assumed)


def _is_among(assumed: Container[Any], value: torch.SymBool, shape_env: Any) -> bool:
    return _canonical(value.node._expr, shape_env) in assumed


def _erase_unused(node: fx.Node) -> None:
    """Erase a call that computes a number, if nothing uses it, and those that only it used."""
    if node.op == "call_function" and not node.users and not _is_tensor(node):
        used = node.all_input_nodes
        node.graph.erase_node(node)
        for each in used:
            _erase_unused(each)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.Tensor, list, tuple))


def _canonical(expression: Any, shape_env: Any) -> Any:
    """The same condition in the form, and with the names of symbols, that the first trace gave."""
    names: dict[Any, Any] = shape_env.unbacked_renamings
    while expression.free_symbols & names.keys():
        expression = expression.xreplace(names)
    return canonicalize_bool_expr(expression)


def _takes_its_sizes_from_others(node: fx.Node, writer: _Writer) -> bool:
    """Whether a result depends on a size that an earlier call found in data.

    The sizes of what such a call itself returns are what they are: nothing is assumed about them.
    """
    value = node.meta.get("val")
    if node.op == "placeholder" or not isinstance(value, torch.Tensor):
        return False
    if not runtime.depends_on_data(value) or _has_the_sizes_of_its_arguments(node):
        return False
    return not all(writer.is_from(node, size) for size in tuple[Any, ...](value.shape))


def _has_the_sizes_of_its_arguments(node: fx.Node) -> bool:
    """Whether a call computes each element of its result from the same elements of its arguments.

    The sizes of the arguments are checked already.
    """
    if torch.Tag.pointwise not in getattr(node.target, "tags", ()):
        return False
    tensors = [each.meta["val"] for each in node.all_input_nodes if _is_tensor(each)]
    return all(
        isinstance(each, torch.Tensor) and layout.same_sizes(each, node.meta["val"])
        for each in tensors
    )


class _Place(NamedTuple):
    """Where a symbol's number is: in a node that is a number, or in what a tensor is asked for."""

    node: fx.Node
    asks: Any = None
    arguments: tuple[int, ...] = ()


class _Writer:
    """Writes checks behind the nodes of a graph, from the first to the last.

    A symbol is known from the node on that computes its number, or that returns a tensor with a
    size of that number. In a second trace such a symbol has a second name; both are known then.
    """

    def __init__(self, graph: fx.Graph, shape_env: Any) -> None:
        self._graph, self._shape_env = graph, shape_env
        self._places: dict[Any, _Place] = {}
        self._values: dict[Any, fx.Proxy] = {}
        self._tracer = fx.proxy.GraphAppendingTracer(graph)
        self._next: fx.Node = next(iter(graph.nodes))

    def go_to(self, node: fx.Node) -> None:
        """Checks are written behind this node from now on; its symbols are known."""
        value = node.meta.get("val")
        self._next = node.next
        if node.op == "placeholder":
            while self._next.op == "placeholder":
                self._next = self._next.next
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            self._know(value, _Place(node))
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
            for dimension, size in enumerate(value.shape):
                self._know(size, _Place(node, aten.sym_size.int, (dimension,)))
            for dimension, stride in enumerate(value.stride()):
                self._know(stride, _Place(node, aten.sym_stride.int, (dimension,)))
            self._know(value.storage_offset(), _Place(node, aten.sym_storage_offset.default))

    def _know(self, number: Any, place: _Place) -> None:
        if isinstance(number, (torch.SymInt, torch.SymFloat)):
            symbol = number.node._expr
            if isinstance(symbol, sympy.Symbol):
                for name in self._names(symbol):
                    self._places.setdefault(name, place)

    def _names(self, symbol: Any) -> Iterator[Any]:
        while symbol is not None:
            yield symbol
            symbol = self._shape_env.unbacked_renamings.get(symbol)

    def is_from(self, node: fx.Node, size: Any) -> bool:
        """Whether a size of a tensor is known, or a number that this node is the first to have."""
        if isinstance(size, int):
            return True
        place = self._places.get(size.node._expr)
        return place is not None and place.node is node

    def knows(self, expression: Any) -> bool:
        return all(symbol in self._places for symbol in expression.free_symbols)

    def is_true_of_all_sizes(self, expression: Any) -> bool:
        """Whether a condition says no more than that a tensor has no negative size or stride."""
        return any(
            expression == sympy.Le(0, symbol) and self._places[symbol].asks is not None
            for symbol in expression.free_symbols
        )

    def expect(self, expression: Any) -> None:
        """Write the check that a condition holds."""
        text = f"the graph was traced for {expression}"
        self._call(aten._assert_scalar.default, (self._compute_value(expression).node, text))

    def expect_sizes(self, node: fx.Node) -> None:
        """Write the check that a tensor has the sizes that the trace gave it."""
        sizes = []
        for size in node.meta["val"].shape:
            expression = size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
            if not self.knows(expression):
                raise NotKept(f"nobody knows the size {expression} of a tensor", node.stack_trace)
            computed = self._compute_value(expression)
            sizes.append(computed.node if isinstance(computed, fx.Proxy) else int(computed))
        self._call(aten._assert_tensor_metadata.default, (node, sizes))

    def _compute_value(self, expression: Any) -> Any:
        """The value of an expression: a proxy, or a number."""
        for symbol in sorted(expression.free_symbols, key=str):  # in the same order in any process
            if symbol not in self._values:
                self._values[symbol] = fx.Proxy(self._number(symbol), self._tracer)
        last = self._next.prev
        with self._graph.inserting_before(self._next):
            value = sympy_interp(OptimizedPythonReferenceAnalysis, self._values, expression)
        while last.next is not self._next:
            last = last.next
            _give_value(last)
        return value

    def _number(self, symbol: Any) -> fx.Node:
        place = self._places[symbol]
        if place.asks is None:
            return place.node
        measured = self._call(place.asks, (place.node, *place.arguments))
        _give_value(measured)
        return measured

    def _call(self, target: Any, args: tuple[Any, ...]) -> fx.Node:
        with self._graph.inserting_before(self._next):
            return self._graph.call_function(target, args)


def _give_value(node: fx.Node) -> None:
    """Give a call that computes a number its symbolic value, so that passes know it is a number."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]


def _refuse_copies_that_are_seen(graph_module: fx.GraphModule) -> None:
    """Raise `NotKept` if somebody can tell a copy of a traced call from a view that eager makes.

    `reshape` and `contiguous` return a view where the sizes allow one. Without the sizes the trace
    made a copy, which takes no part in later writes, neither of the graph's nor of the caller's.
    """
    present = set(subgraphs.nodes_of(graph_module))
    copied = [(node, stack) for node, stack in graph_module.meta[COPIED] if node in present]
    known = aliasing.known(graph_module.graph) if copied else None
    for node, stack in copied:
        if known is None or node.graph is not graph_module.graph or _is_seen(known, node):
            what = (
                "whether this returns a view or a copy depends on data, and it makes a difference"
            )
            raise NotKept(what, stack, "copy explicitly: .clone()")


def _is_seen(known: aliasing.Aliasing, copy: fx.Node) -> bool:
    source = known.places(copy.all_input_nodes[0])
    copies = known.places(copy)
    at, end = known.position[copy], len(known.position)
    if known.written(source | copies, at, end):
        return True
    return known.visible(source) and known.visible(copies)
