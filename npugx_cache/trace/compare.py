"""Tells whether two traces of one call mean the same. Independent operators may change places.

A set that the two traces walk in opposite orders needs no condition on its order if they do. We
compare the lowered graphs, the caller frames, the guards, and the code that was traced. What we
can't compare counts as different.
"""

from __future__ import annotations

import dis
import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from npugx_cache.private.schemas import gives_new_memory, is_pure
from npugx_cache.trace import tracing
from npugx_cache.trace.dynamo import DynamoTrace, NotTraced

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Observation


_COUNTED = re.compile(r"(_c)\d+$|(__compiled_fn_)\w+")
_READS = frozenset(
    {"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CONST", "LOAD_ATTR"}
)
_WITHOUT_EFFECT = frozenset({"RESUME", "COPY_FREE_VARS", "MAKE_CELL", "PUSH_NULL", "PRECALL"})


def either(
    walk: Observation,
    one: DynamoTrace,
    graph: torch.fx.GraphModule | None,
    other: DynamoTrace | NotTraced,
    lower: Callable[[DynamoTrace], torch.fx.GraphModule | None],
) -> tuple[DynamoTrace, torch.fx.GraphModule | None]:
    """The one of two traces of a call that we go on with, and its lowered graph.

    `other` walks the set of `walk` in the opposite order. If both traces mean the same, the order
    of the set is no condition, and we take the trace that walks the set in sorted order, so that
    equal calls make equal entries. Otherwise we take `one`. `graph` is the lowered graph of `one`;
    `lower` makes that of `other`.
    """
    if isinstance(other, NotTraced):
        return one, graph
    try:
        flipped = lower(other)
        same = _conditions(one) == _conditions(other)
        same = same and _whole(one, graph) == _whole(other, flipped)
    except Exception:  # noqa: BLE001 - what can't be compared is not the same
        same = False
    if not same:
        return one, graph
    order = walk.argument.order
    if order != sorted(order, key=repr):
        one, graph = replace(other, sizes=one.sizes), flipped
    return replace(one, observed=tuple(o for o in one.observed if o != walk)), graph


def _conditions(trace: DynamoTrace) -> tuple[Any, ...]:
    return (
        set(trace.observed),
        tracing.raw_conditions(trace.output),
        {id(code) for code in trace.code},
        trace.imports,
        trace.methods,
    )


def _whole(trace: DynamoTrace, graph: torch.fx.GraphModule | None) -> tuple[Any, ...]:
    if graph is None:
        return None, _plain_frame(trace.bytecode)
    arguments, frame = _frame(trace.bytecode, sum(n.op == "placeholder" for n in graph.graph.nodes))
    return _canonical(graph, arguments), frame


# --- the graph


def _canonical(graph: torch.fx.GraphModule, arguments: list[Any]) -> str:
    """A digest of what the graph does, the same for each order of its independent nodes.

    Nodes may change places between two writes, but writes keep their order. Two nodes that compute
    the same thing have one name, unless a caller could tell their memory apart (`_exposed_nodes`):
    such nodes are numbered. `arguments` tell where each input comes from.
    """
    shown = _exposed_nodes(graph)
    names: dict[Node, str] = {}
    count: dict[str, int] = {}
    epoch, inputs = "", iter(arguments)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            names[node] = _digest("input", next(inputs))
            continue
        what = [str(node.target), _text_of_arguments((node.args, node.kwargs), names)]
        if node.op == "get_attr":
            what = [_constant(graph, str(node.target))]
        key = _digest(node.op, epoch, *what)
        if node in shown:
            count[key] = count.get(key, 0) + 1
        names[node] = _digest(key, count.get(key, 0))
        if node.op == "output" or not (node.op == "get_attr" or is_pure(node.target)):
            epoch = _digest(epoch, names[node])
    return epoch


def _exposed_nodes(graph: torch.fx.GraphModule) -> set[Node]:
    """Nodes whose memory is written to or returned, directly or through a view."""
    shown: set[Node] = set()
    for node in reversed(graph.graph.nodes):
        fixed = node.op == "call_function" and is_pure(node.target)
        if not fixed or (node in shown and not gives_new_memory(node.target)):
            shown.update(node.all_input_nodes)
    return shown


def _text_of_arguments(arguments: Any, names: dict[Node, str]) -> str:
    """Arguments as a text, with names for nodes. `1` and `True` differ, and so do 0.0 and -0.0."""
    leaves, structure = pytree.tree_flatten(arguments)
    texts = [
        names[leaf] if isinstance(leaf, Node) else f"{type(leaf).__name__} {leaf!r}"
        for leaf in leaves
    ]
    return f"{texts} {structure}"


def _constant(graph: torch.fx.GraphModule, name: str) -> str:
    value: Any = graph
    for part in name.split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"an attribute of type {type(value).__name__}")
    content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return _digest(value.dtype, value.device, tuple(value.shape), value.stride(), content)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


# --- the caller frame


def _frame(code: types.CodeType, inputs: int) -> tuple[list[Any], list[Any]]:
    """Where each input of the graph is read from, and what else the frame does.

    A local variable that keeps a value is replaced by where the value comes from. The result of a
    call is named by the position of the call, because with an accelerator Dynamo first calls for
    the current stream. Raises ValueError for bytecode that we can't compare.
    """
    instructions = list(dis.get_instructions(code))
    stack: list[Any] = []
    kept: dict[str, Any] = {}
    calls: list[Any] = []
    for position, this in enumerate(instructions):
        if this.opname != "CALL":
            _read(this, stack, kept)
            continue
        called, *arguments = stack[-1 - (this.arg or 0) :]
        if str(called[1]).startswith("__compiled_fn_"):
            if len(stack) != 1 + inputs:
                raise ValueError("the graph is called with something else on the stack")
            return arguments, [calls, *_rest(code, instructions[position + 1 :], kept)]
        stack[-1 - len(arguments) :] = [("result", len(calls))]
        calls.append((called, arguments))
    raise ValueError("the graph is not called")


def _read(this: dis.Instruction, stack: list[Any], kept: dict[str, Any]) -> None:
    if this.opname in _WITHOUT_EFFECT:
        return
    if this.opname in ("LOAD_ATTR", "LOAD_METHOD"):
        stack.append(("attribute", stack.pop(), this.argval))
    elif this.opname in ("LOAD_FAST", "LOAD_FAST_CHECK") and this.argval in kept:
        stack.append(kept[this.argval])
    elif this.opname in _READS:
        stack.append((this.opname, _name(this)))
    elif this.opname == "BINARY_SUBSCR" or (this.opname, this.argrepr) == ("BINARY_OP", "[]"):
        key = stack.pop()
        stack.append(("item", stack.pop(), key))
    elif (this.opname, this.arg) == ("COPY", 1):
        stack.append(stack[-1])
    elif this.opname == "STORE_FAST":
        kept[this.argval] = stack.pop()
    elif this.opname == "POP_TOP":
        stack.pop()
    else:
        raise ValueError(f"unknown to this comparison: {this.opname}")


def _rest(
    code: types.CodeType, instructions: list[dis.Instruction], kept: dict[str, Any]
) -> list[Any]:
    stored = {this.argval for this in instructions if this.opname == "STORE_FAST"}
    if code.co_exceptiontable or stored & kept.keys():
        raise ValueError("an exception handler, or a name that is used twice")
    arguments = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2])
    rest: list[Any] = []
    for this in instructions:
        if this.opname == "DELETE_FAST" and this.argval in kept.keys() - arguments:
            continue
        if this.opname in ("LOAD_FAST", "LOAD_FAST_CHECK") and this.argval in kept:
            rest.append(kept[this.argval])
        else:
            rest.append((this.opname, _name(this)))
    return rest


def _plain_frame(code: types.CodeType) -> list[Any]:
    return _rest(code, list(dis.get_instructions(code)), {})


def _name(this: dis.Instruction) -> Any:
    """The argument of an instruction. A constant has its type with it; counters are cut off."""
    if this.opname == "LOAD_CONST":
        return type(this.argval).__name__, repr(this.argval)
    if this.opname == "LOAD_GLOBAL":
        return _COUNTED.sub(r"\1\2", this.argval)
    return this.argval if isinstance(this.argval, str) else this.arg
