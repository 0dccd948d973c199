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
from npugx_cache.backend.program import (
    COLLECTIVES,
    PYTHON_FUNCTIONS,
    STREAM_OPERATORS,
    STREAMS,
    VALUE,
    Call,
    Constant,
    Operator,
    Program,
)
from npugx_cache.portable import NotPortable, Plain, encode
from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Sequence

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
_RESERVED = frozenset({"torch", "device", "inf", "nan", "forward", "Ellipsis", "range", "slice"})


def to_program(
    graph_module: fx.GraphModule, input_names: Sequence[str] = ()
) -> tuple[Program, dict[str, torch.Tensor]]:
    """The program of a graph, and its constants by name. Raises `NotPortable` with the reason.

    `input_names` name the placeholders; the default is their names in the graph. Must be called in
    the autocast state in which the graph was traced, because the program records that state.
    """
    return _Encoder(graph_module, input_names).encode()


class _Encoder:
    def __init__(self, graph_module: fx.GraphModule, input_names: Sequence[str]) -> None:
        self._module = graph_module
        self._names: set[str] = set(_RESERVED)
        self._values: dict[fx.Node, int] = {}
        self._operators: dict[Operator, int] = {}
        self._calls: list[Call] = []
        self._constants: list[Constant] = []
        self._tensors: dict[str, torch.Tensor] = {}
        nodes = list(graph_module.graph.nodes)
        self._placeholders = [node for node in nodes if node.op == "placeholder"]
        self._attributes = [node for node in nodes if node.op == "get_attr"]
        self._rest = [node for node in nodes if node.op not in ("placeholder", "get_attr")]
        names = input_names or [node.name for node in self._placeholders]
        self._inputs = tuple(self._unique(name) for name in names)

    def encode(self) -> tuple[Program, dict[str, torch.Tensor]]:
        for node in self._placeholders:
            self._values[node] = len(self._values)
        for node in self._attributes:
            self._add_constant(node)
            self._values[node] = len(self._values)
        outputs: Plain = None
        for node in self._rest:
            if node.op == "output":
                outputs = self._argument(node.args[0])
            else:
                self._add_call(node)
        program = Program(
            inputs=self._inputs,
            constants=tuple(self._constants),
            operators=tuple(self._operators),
            calls=tuple(self._calls),
            outputs=outputs,
            disable_autocast=runtime.is_any_autocast_enabled(),
        )
        return program, self._tensors

    def _unique(self, wanted: str) -> str:
        base = wanted if wanted.isidentifier() and not keyword.iskeyword(wanted) else "v"
        name, serial = base, 1
        while name in self._names:
            name, serial = f"{base}_{serial}", serial + 1
        self._names.add(name)
        return name

    def _add_call(self, node: fx.Node) -> None:
        if node.op != "call_function":
            _refuse(node, f"the graph calls a {node.op} ({node.target})", _OUTSIDE)
        target = self._operator(node)
        index = self._operators.setdefault(target, len(self._operators))
        try:
            args = [self._argument(arg) for arg in node.args]
            kwargs = [[name, self._argument(arg)] for name, arg in node.kwargs.items()]
        except NotPortable as error:
            _refuse(node, f"an argument of {node.target}: {error}", _OUTSIDE)
        self._calls.append(Call(self._unique(node.name), index, args, kwargs))
        self._values[node] = len(self._values)

    def _operator(self, node: fx.Node) -> Operator:
        target: Any = node.target
        named = runtime.operator_name(target)
        if named is not None and named[0] == "op":
            refuse_call(node)
            if named[1] == STREAMS and named[2] not in STREAM_OPERATORS:
                _refuse(node, f"{node.target} works on a stream of this process", _OUTSIDE)
            if named[1] == COLLECTIVES and named[2].rstrip("_") not in _COLLECTIVES_KNOWN:
                _refuse(node, f"{node.target} is not one of the known collectives", _OUTSIDE)
            return Operator(*named[1:])
        if named is not None:
            _refuse_higher_order(node)
        if target not in _FUNCTION_NAMES:
            _refuse(node, f"the graph calls {getattr(target, '__qualname__', target)}", _OUTSIDE)
        return Operator("", _FUNCTION_NAMES[target], "")

    def _argument(self, arg: Any) -> Plain:
        if isinstance(arg, fx.Node):
            return [VALUE, self._values[arg]]
        if isinstance(arg, (list, tuple)) and type(arg) is not torch.Size:
            kind = "tuple" if isinstance(arg, tuple) else "list"
            return [kind, [self._argument(item) for item in arg]]
        if isinstance(arg, slice):
            parts = (self._argument(part) for part in (arg.start, arg.stop, arg.step))
            return ["slice", *parts]
        if isinstance(arg, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise NotPortable(f"a size that no operator computes: {arg}")
        return encode(arg)

    def _add_constant(self, node: fx.Node) -> None:
        tensor: Any = self._module
        for part in str(node.target).split("."):
            tensor = getattr(tensor, part)
        user = next(iter(node.users), node)
        if isinstance(tensor, fx.GraphModule):
            _refuse_higher_order(user)
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            _refuse(user, f"the graph holds a {type(tensor).__name__}", _AS_ARGUMENT)
        if tensor.layout is not torch.strided:
            _refuse(user, f"the graph holds a {tensor.layout} tensor", _AS_ARGUMENT)
        name = self._unique(node.name)
        self._constants.append(
            Constant(
                name,
                str(tensor.dtype).removeprefix("torch."),
                str(tensor.device),
                tuple(tensor.shape),
                tuple(tensor.stride()),
            )
        )
        self._tensors[name] = tensor.detach()


def refuse_call(node: fx.Node) -> None:
    """Raise `NotPortable` for a call whose result a stored graph can't reproduce."""
    target: Any = node.target
    if torch.Tag.nondeterministic_seeded in target.tags and not _without_dropout(node):
        change = "call eval() if it is dropout, or pass the random numbers in as an argument"
        _refuse(node, f"{target} draws random numbers", change)
    if runtime.depends_on_data(node.meta.get("val")):
        what = f"the size of what {target} returns depends on data"
        _refuse(node, what, "do this outside the cached function, or select with torch.where")


def _refuse_higher_order(node: fx.Node) -> NoReturn:
    named = runtime.operator_name(node.target)
    what = f"torch.ops.higher_order.{named[1] if named else node.target} contains graphs of its own"
    _refuse(node, what, "choose with torch.where, or branch outside the cached function")


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
