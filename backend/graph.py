"""Encodes an aten fx graph as a Program. Refuses, with a reason, what can't be stored."""

from __future__ import annotations

import builtins
import keyword
import math
import operator
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import fx

from npugx_cache import location
from npugx_cache.backend import subgraphs
from npugx_cache.backend.notes_on import notes_on
from npugx_cache.backend.program import (
    COLLECTIVES,
    CONTROL_FLOW,
    FUNCTION,
    HIGHER_ORDER,
    MAIN,
    PYTHON_FUNCTIONS,
    STREAM_OPERATORS,
    STREAMS,
    VALUE,
    Call,
    Constant,
    Function,
    Operator,
    Program,
)
from npugx_cache.errors import CorruptEntry
from npugx_cache.events import logger
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.portable import NotPortable, Plain, encode
from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npugx_cache.backend.notes import Notes

_MODULES = {"operator": operator, "math": math, "torch": torch, "builtins": builtins}
_FUNCTION_NAMES = {
    getattr(_MODULES[name.partition(".")[0]], name.partition(".")[2]): name
    for name in PYTHON_FUNCTIONS
}
# The arguments of these operators that differ between ranks, such as the sizes of all_to_all, need
# no special care: they are constants of the trace, and Dynamo guards the places they come from.
_COLLECTIVES_KNOWN = frozenset(
    {
        "all_reduce",
        "all_reduce_coalesced",
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
        "all_to_all_single",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
        "broadcast",
        "wait_tensor",
    }
)
_RESERVED = frozenset({"torch", "device", "inf", "nan", MAIN, "Ellipsis", "range", "slice"})


def to_program(
    graph_module: fx.GraphModule, input_names: Sequence[str] | None = None
) -> tuple[Program, dict[str, torch.Tensor]]:
    """The program of a graph, and its constants by name. Raises `NotPortable` with the reason.

    `input_names` name the placeholders, each one; the default is their names in the graph. Must be
    called in the autocast state in which the graph was traced, because the program records that
    state.
    """
    shared = _Shared()
    shared.collect(graph_module)
    functions = tuple(
        _Encoder(inner, shared, name, None).encode() for inner, name in shared.graphs.items()
    )
    main = _Encoder(graph_module, shared, MAIN, input_names).encode()
    program = Program(
        inputs=main.inputs,
        constants=tuple(shared.constants),
        operators=tuple(shared.operators),
        calls=main.calls,
        outputs=main.outputs,
        disable_autocast=runtime.is_any_autocast_enabled(),
        functions=functions,
        notes=_notes(graph_module),
    )
    try:
        program.validate()
    except CorruptEntry as error:  # what nobody could read must not be stored
        raise NotPortable(str(error)) from None
    return program, shared.tensors


def _notes(graph_module: fx.GraphModule) -> Notes | None:
    """The notes on a graph. A user's pass may leave on its nodes what no notes can be made of."""
    try:
        return notes_on(graph_module)
    except Exception as error:  # noqa: BLE001 - see above
        let_through(error)
        logger.info("an entry gets no notes for people: %r", error)
        return None


class _Shared:
    """What a graph and the graphs inside it have in common.

    `graphs` are the graphs inside, and their names; each comes after the graphs inside itself.
    `values` tells what a get_attr node stands for: the index of a constant, or a graph inside.
    """

    def __init__(self) -> None:
        self.names: set[str] = set(_RESERVED)
        self.graphs: dict[fx.GraphModule, str] = {}
        self.values: dict[fx.Node, int | fx.GraphModule] = {}
        self.operators: dict[Operator, int] = {}
        self.constants: list[Constant] = []
        self.tensors: dict[str, torch.Tensor] = {}

    def collect(self, graph_module: fx.GraphModule) -> None:
        for node in graph_module.graph.nodes:
            if node.op == "get_attr":
                value = operator.attrgetter(str(node.target))(graph_module)
                if isinstance(value, fx.GraphModule):
                    self._add_graph(node, value)
                else:
                    self._add_constant(node, value)

    def _add_graph(self, node: fx.Node, inner: fx.GraphModule) -> None:
        for user in node.users:
            if not subgraphs.runs_graphs(user):
                _refuse(user, f"{user.target} contains graphs of its own", _OUTSIDE)
        if inner not in self.graphs:
            self.collect(inner)
            self.graphs[inner] = _unique(node.name, self.names)
        self.values[node] = inner

    def _add_constant(self, node: fx.Node, tensor: Any) -> None:
        user = next(iter(node.users), node)
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            _refuse(user, f"the graph holds a {type(tensor).__name__}", _AS_ARGUMENT)
        if tensor.layout is not torch.strided:
            _refuse(user, f"the graph holds a {tensor.layout} tensor", _AS_ARGUMENT)
        name = _unique(node.name, self.names)
        self.values[node] = len(self.constants)
        self.constants.append(
            Constant(
                name,
                str(tensor.dtype).removeprefix("torch."),
                str(tensor.device),
                tuple(tensor.shape),
                tuple(tensor.stride()),
            )
        )
        self.tensors[name] = tensor.detach()


def _unique(wanted: str, taken: set[str]) -> str:
    """An identifier like `wanted` that is not taken; it is taken from then on."""
    fits = wanted.isascii() and wanted.isidentifier() and not keyword.iskeyword(wanted)
    base = wanted if fits else "v"
    name, serial = base, 1
    while name in taken:
        name, serial = f"{base}_{serial}", serial + 1
    taken.add(name)
    return name


class _Encoder:
    """Encodes one graph: the whole one, or one inside it. Its names are local to its function."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        shared: _Shared,
        name: str,
        input_names: Sequence[str] | None,
    ) -> None:
        self._nodes = list(graph_module.graph.nodes)
        self._shared = shared
        self._name = name
        self._names = set(shared.names)
        self._inner = list(shared.graphs)
        placeholders = [node for node in self._nodes if node.op == "placeholder"]
        own = [node.name for node in placeholders]
        names = own if input_names is None else input_names
        if len(names) != len(placeholders):
            what = f"the graph takes {len(placeholders)} values where a call gives {len(names)}"
            raise NotPortable(f"{what}, such as a list of tensors that stays a list")
        self._inputs = tuple(_unique(name, self._names) for name in names)
        self._values = {node: index for index, node in enumerate(placeholders)}
        self._calls: list[Call] = []

    def encode(self) -> Function:
        outputs: Plain = None
        for node in self._nodes:
            if node.op == "output":
                outputs = self._argument(node.args[0])
            elif node.op not in ("placeholder", "get_attr"):
                self._add_call(node)
        return Function(self._name, self._inputs, tuple(self._calls), outputs)

    def _add_call(self, node: fx.Node) -> None:
        if node.op != "call_function":
            _refuse(node, f"the graph calls a {node.op} ({node.target})", _OUTSIDE)
        target = self._operator(node)
        index = self._shared.operators.setdefault(target, len(self._shared.operators))
        try:
            args = [self._argument(arg) for arg in node.args]
            kwargs = [[name, self._argument(arg)] for name, arg in node.kwargs.items()]
        except NotPortable as error:
            _refuse(node, f"an argument of {node.target}: {error}", _OUTSIDE)
        first = len(self._inputs) + len(self._shared.constants)
        self._values[node] = first + len(self._calls)
        self._calls.append(Call(_unique(node.name, self._names), index, args, kwargs))

    def _operator(self, node: fx.Node) -> Operator:
        target: Any = node.target
        named = runtime.operator_name(target)
        if named is not None and named[0] == "op":
            refuse_call(node)
            if self._name != MAIN:
                _refuse_sizes_from_data(node)
            if named[1] == STREAMS and named[2] not in STREAM_OPERATORS:
                _refuse(node, f"{node.target} works on a stream of this process", _OUTSIDE)
            if named[1] == COLLECTIVES and named[2].rstrip("_") not in _COLLECTIVES_KNOWN:
                _refuse(node, f"{node.target} is not one of the known collectives", _OUTSIDE)
            return Operator(*named[1:])
        if named is not None and named[0] == "hop":
            _refuse_higher_order(node, named[1])
            return Operator(HIGHER_ORDER, named[1], "")
        if target not in _FUNCTION_NAMES:
            _refuse(node, f"the graph calls {getattr(target, '__qualname__', target)}", _OUTSIDE)
        return Operator("", _FUNCTION_NAMES[target], "")

    def _argument(self, arg: Any) -> Plain:
        if isinstance(arg, fx.Node):
            return self._reference(arg)
        if isinstance(arg, (list, tuple)) and type(arg) is not torch.Size:
            kind = "tuple" if isinstance(arg, tuple) else "list"
            return [kind, [self._argument(item) for item in arg]]
        if isinstance(arg, slice):
            parts = (self._argument(part) for part in (arg.start, arg.stop, arg.step))
            return ["slice", *parts]
        if isinstance(arg, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise NotPortable(f"a size that no operator computes: {arg}")
        return encode(arg)

    def _reference(self, node: fx.Node) -> Plain:
        if node.op != "get_attr":
            return [VALUE, self._values[node]]
        value = self._shared.values[node]
        if isinstance(value, fx.GraphModule):
            return [FUNCTION, self._inner.index(value)]
        return [VALUE, len(self._inputs) + value]


def refuse_call(node: fx.Node) -> None:
    """Raise `NotPortable` for a call whose result a stored graph can't reproduce."""
    target: Any = node.target
    if torch.Tag.nondeterministic_seeded in target.tags and not _without_dropout(node):
        change = "call eval() if it is dropout, or pass the random numbers in as an argument"
        _refuse(node, f"{target} draws random numbers", change)


def _refuse_sizes_from_data(node: fx.Node) -> None:
    """Raise `NotPortable` for a size that depends on data inside a graph inside the graph.

    `data_sizes` writes its checks into the graph itself only.
    """
    if runtime.depends_on_data(node.meta.get("val")):
        what = f"the size of what {node.target} returns depends on data, inside a branch or a loop"
        _refuse(node, what, "do this outside of it, or select with torch.where")


def _refuse_higher_order(node: fx.Node, name: str) -> None:
    """Raise `NotPortable` for a call of an operator on graphs that a stored program can't do."""
    if len(node.args) != CONTROL_FLOW.get(name) or node.kwargs:
        _refuse(node, f"{node.target} is not an operator that a stored graph can call", _OUTSIDE)
    if runtime.depends_on_data(node.meta.get("val")):
        what = f"the size of what {node.target} returns depends on data"
        _refuse(node, what, "return tensors of the same sizes from all graphs inside")


def _refuse(node: fx.Node, what: str, change: str) -> NoReturn:
    raise NotPortable(location.reason(what, location.of_text(node.stack_trace), change))


_OUTSIDE = "do this outside the cached function"
_AS_ARGUMENT = "create it outside the cached function and pass it in as an argument"


def _without_dropout(node: fx.Node) -> bool:
    """Whether the call's `dropout_p` is 0.

    Attention operators carry the tag of random operators because they can do dropout.
    """
    names = runtime.argument_defaults(node.target)
    if "dropout_p" not in names:
        return False
    position = list(names).index("dropout_p")
    given = node.args[position] if position < len(node.args) else None
    return (given if given is not None else node.kwargs.get("dropout_p", names["dropout_p"])) == 0
