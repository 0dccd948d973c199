"""Conditions on symbolic sizes: torch's expressions as data, evaluated on ints.

torch prints them as Python over the sizes of the inputs (`2 <= x.size()[0]`, `Mod(s, 8) == 0`).
We store them as nested lists of a closed vocabulary: [operator, operand, ...], ["node", n] for the
value of a node of the guard tree, and ["const", value].
"""

from __future__ import annotations

import ast
import math
import operator
from typing import TYPE_CHECKING, Any

from npugx_cache.portable import NotPortable, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npugx_cache.portable import Plain

_BINARY: dict[type[ast.AST], tuple[str, Callable[..., Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", operator.pow),
    ast.LShift: ("<<", operator.lshift),
    ast.RShift: (">>", operator.rshift),
    ast.BitAnd: ("&", operator.and_),
    ast.BitOr: ("|", operator.or_),
    ast.BitXor: ("^", operator.xor),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}
_UNARY: dict[type[ast.AST], tuple[str, Callable[..., Any]]] = {
    ast.Not: ("not", operator.not_),
    ast.USub: ("neg", operator.neg),
    ast.UAdd: ("pos", operator.pos),
}
_CALLS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "int": int,
    "float": float,
    "math.floor": math.floor,
    "math.ceil": math.ceil,
    "math.trunc": math.trunc,
    "math.sqrt": math.sqrt,
    "math.pow": math.pow,
    "math.isnan": math.isnan,
    "math.isinf": math.isinf,
    "math.isfinite": math.isfinite,
    "round": round,
}
_OPERATORS: dict[str, Callable[..., Any]] = {
    **dict(_BINARY.values()),
    **dict(_UNARY.values()),
    **_CALLS,
}


def parse(text: str, names: Mapping[str, int]) -> Plain:
    """Turn one of torch's conditions into data; `names` maps its variables to nodes.

    Raises `NotPortable` for syntax or functions outside the vocabulary.
    """
    return _parse(ast.parse(text.strip(), mode="eval").body, names)


def _parse(tree: ast.expr, names: Mapping[str, int]) -> Plain:
    match tree:
        case ast.Name(id=name) if name in names:
            return ["node", names[name]]
        case ast.Constant(value=value) if isinstance(value, (bool, int, float)):
            return ["const", encode(value)]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return [_BINARY[type(op)][0], _parse(left, names), _parse(right, names)]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return [_UNARY[type(op)][0], _parse(operand, names)]
        case ast.BoolOp(op=op, values=values):
            word = "and" if isinstance(op, ast.And) else "or"
            return [word, *(_parse(value, names) for value in values)]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ["if", *(_parse(part, names) for part in (test, body, orelse))]
        case ast.Compare():
            return _parse_comparison(tree, names)
        case ast.Call(func=function, args=args, keywords=[]) if _called_name(function) in _CALLS:
            return [_called_name(function), *(_parse(arg, names) for arg in args)]
    raise NotPortable(f"shape condition {ast.unparse(tree)!r}")


_ON_INTS = {"torch.sym_max": "max", "torch.sym_min": "min"}
"""What functions for symbolic sizes are called where sizes are ints; torch 2.14 prints them."""


def _called_name(function: ast.expr) -> str:
    name = ast.unparse(function)
    return _ON_INTS.get(name, name)


def _parse_comparison(tree: ast.Compare, names: Mapping[str, int]) -> Plain:
    operands = [_parse(part, names) for part in (tree.left, *tree.comparators)]
    pairs = []
    for op, left, right in zip(tree.ops, operands, operands[1:], strict=False):
        if type(op) not in _BINARY:
            raise NotPortable(f"shape condition {ast.unparse(tree)!r}")
        pairs.append([_BINARY[type(op)][0], left, right])
    return pairs[0] if len(pairs) == 1 else ["and", *pairs]


def nodes_in(condition: Plain) -> set[int]:
    """The nodes whose values a condition is about."""
    if condition[0] == "node":
        return {condition[1]}
    if condition[0] == "const":
        return set()
    return set().union(*map(nodes_in, condition[1:]))


def equalities(condition: Plain) -> Iterator[tuple[int, int]]:
    """The nodes that must equal a whole number for the condition to be true, and the numbers."""
    if condition[0] == "and":
        for part in condition[1:]:
            yield from equalities(part)
    elif condition[0] == "==":
        sides = {side[0]: side[1] for side in condition[1:]}
        if sides.keys() == {"node", "const"} and type(sides["const"]) is int:
            yield sides["node"], sides["const"]


def renumber_nodes(condition: Plain, place: Mapping[int, int]) -> Plain:
    """The condition for another numbering of nodes."""
    if condition[0] == "node":
        return ["node", place[condition[1]]]
    if condition[0] == "const":
        return condition
    return [condition[0], *(renumber_nodes(part, place) for part in condition[1:])]


def prepare(condition: Plain) -> Callable[[Sequence[Any]], Any]:
    """What a condition gives for the values of the nodes, ready to be asked often.

    Raises anything for data that `parse` can't have made.
    """
    head = condition[0]
    if head == "node":
        return operator.itemgetter(condition[1])
    if head == "const":
        value = decode(condition[1])
        return lambda _: value
    parts = [prepare(part) for part in condition[1:]]
    if head == "and":
        return lambda values: all(part(values) for part in parts)
    if head == "or":
        return lambda values: any(part(values) for part in parts)
    if head == "if":
        test, yes, no = parts
        return lambda values: yes(values) if test(values) else no(values)
    compute = _OPERATORS[head]
    if len(parts) == 2:
        left, right = parts
        return lambda values: compute(left(values), right(values))
    return lambda values: compute(*[part(values) for part in parts])


def wording(data: Plain, name: Callable[[int], str]) -> str:
    """A condition as Python; `name` gives the text of a node."""
    head = data[0]
    if head == "node":
        return name(data[1])
    if head == "const":
        return repr(decode(data[1]))
    if head in _CALLS:
        return f"{head}({', '.join(wording(part, name) for part in data[1:])})"
    parts = [_operand(part, name) for part in data[1:]]
    if head == "if":
        return f"({parts[1]} if {parts[0]} else {parts[2]})"
    if len(parts) == 1:
        return {"not": "not ", "neg": "-", "pos": "+"}[head] + parts[0]
    return f" {head} ".join(parts)


def _operand(data: Plain, name: Callable[[int], str]) -> str:
    text = wording(data, name)
    return text if data[0] in ("node", "const", "if") or data[0] in _CALLS else f"({text})"
