"""Single faults: small changes of one place in one file, made from its syntax tree."""

from __future__ import annotations

import ast
import copy
import random
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

KINDS = ("term", "comparison", "by one", "call", "constant")

_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_BY_ONE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}


class Fault(NamedTuple):
    path: str
    line: int
    last_line: int
    kind: str
    before: str
    after: str
    start: int
    """Bytes of the file before the place."""
    end: int

    def of(self, source: bytes) -> bytes:
        """The file with the fault in it."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def name(self) -> str:
        return f"{self.path}:{self.line}:{self.start}:{self.after}"


def faults_of(path: str, source: bytes) -> list[Fault]:
    """All faults of the functions in a file; what runs when the file is imported has none."""
    lengths = [0]
    for line in source.splitlines(keepends=True):
        lengths.append(lengths[-1] + len(line))
    made: list[Fault] = []
    for node in _nodes_of_functions(ast.parse(source)):
        for kind, after in _changes(node):
            start = lengths[node.lineno - 1] + node.col_offset
            if isinstance(node, ast.With):  # its first lines, and not the block
                last_line = node.body[0].lineno - 1
                end = lengths[last_line]
            else:
                last_line = node.end_lineno
                end = lengths[last_line - 1] + node.end_col_offset
            before = source[start:end].decode()
            if isinstance(node, ast.With) and not before.rstrip().endswith(":"):
                continue  # a comment follows
            text = f"({after})" if isinstance(node, ast.expr) else after
            made.append(Fault(path, node.lineno, last_line, kind, before, text, start, end))
    return list(dict.fromkeys(made))


def draw(faults: Iterable[Fault], seed: int) -> list[Fault]:
    """All faults in an order that the seed chooses, the kinds in turn."""
    chosen = random.Random(seed)
    heaps: dict[str, list[Fault]] = {kind: [] for kind in KINDS}
    for fault in sorted(faults):
        heaps[fault.kind].append(fault)
    for heap in heaps.values():
        chosen.shuffle(heap)
    in_turn = chain.from_iterable(zip_longest(*heaps.values()))
    return [fault for fault in in_turn if fault is not None]


def _nodes_of_functions(tree: ast.Module) -> Iterator[Any]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from chain.from_iterable(map(_nodes, _without_docstring(node.body)))


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if documented else body


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """What may be changed below `node`: no assertion, no message of an exception, no annotation."""
    if isinstance(node, (ast.Assert, ast.Raise, ast.JoinedStr, ast.FunctionDef, ast.ClassDef)):
        return  # a position inside an f-string is not one of the file before Python 3.12
    yield node
    for name, value in ast.iter_fields(node):
        if name not in {"annotation", "decorator_list", "returns"}:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _nodes(child)


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What may stand in the place of `node`."""
    match node:
        case ast.BoolOp(values=values):
            for at in range(len(values)):
                rest = [*values[:at], *values[at + 1 :]]
                fewer = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
                yield "term", ast.unparse(fewer)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "comparison", ast.unparse(operand)
        case ast.Compare(ops=[op]):
            for kind, table in (("comparison", _TURNED), ("by one", _BY_ONE)):
                if type(op) in table:
                    other = copy.copy(node)
                    other.ops = [table[type(op)]()]
                    yield kind, ast.unparse(other)
        case ast.BinOp(op=ast.Add() | ast.Sub(), right=ast.Constant(value=int())):
            yield "by one", ast.unparse(node.left)
        case ast.Expr(value=ast.Call()):
            yield "call", "pass"
        case ast.With(items=items) if all(item.optional_vars is None for item in items):
            yield "call", "if True:\n"
        case ast.Constant(value=bool() as value):
            yield "constant", repr(not value)
        case ast.Constant(value=int() as value):
            yield "by one", repr(value + 1)
        case ast.Constant(value=float() as value):
            yield "constant", repr(value * 2 + 1)
        case ast.Set(elts=[_, *rest]) if rest:
            yield "constant", ast.unparse(ast.Set(rest))
