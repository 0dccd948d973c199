"""Turns a Program into readable Python. This text is what runs, and what `readable` shows.

Does not import torch: `runtime.bind` gives the names in the text their objects.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from npugx_cache.backend.program import (
    FUNCTION,
    HIGHER_ORDER,
    STREAMS,
    VALUE,
    Operator,
    Program,
    values_in,
)
from npugx_cache.errors import CorruptEntry
from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    from npugx_cache.backend.program import Call, Function
    from npugx_cache.portable import Plain


def source_text(program: Program) -> str:
    """The text of a Python module that defines `forward(*inputs)`, which returns the outputs.

    A graph inside the graph is a function before `forward`. Each intermediate is deleted after its
    last use, so that memory is freed as early as in eager.
    """
    operators = operator_names(program)
    functions = (*program.functions, program.main)
    return "\n\n".join(function_text(program, function, operators) for function in functions)


class Names(NamedTuple):
    """The names that stand for references in the text of one function."""

    operators: list[str]
    values: list[str]
    functions: list[str]


def function_text(program: Program, function: Function, operators: list[str]) -> str:
    names = Names(operators, program.names_in(function), [f.name for f in program.functions])
    dying = _last_uses(program, function)
    first = len(function.inputs) + len(program.constants)
    lines = [f"def {function.name}({', '.join(function.inputs)}):"]
    for position, call in enumerate(function.calls):
        line = f"    {call.name} = {call_text(program, call, names)}"
        dead = [names.values[value] for value in dying.get(position, ()) if value >= first]
        lines.append(f"{line}; del {', '.join(dead)}" if dead else line)
    lines.append(f"    return {argument_text(names, function.outputs)}")
    return "\n".join(lines) + "\n"


def operator_names(program: Program) -> list[str]:
    """The global name of each operator of the program, in order: `aten_add_Tensor`, `getitem`."""
    taken = {function.name for function in program.functions}
    for function in (*program.functions, program.main):
        taken.update(program.names_in(function))
    names: list[str] = []
    for operator in program.operators:
        base = _operator_name(operator)
        while base in taken:
            base += "_"
        taken.add(base)
        names.append(base)
    return names


def _operator_name(operator: Operator) -> str:
    if not operator.namespace:
        return operator.name.replace(".", "_")
    if operator.namespace == HIGHER_ORDER:
        return f"{HIGHER_ORDER}_{operator.name}"
    parts = [operator.namespace, operator.name, operator.overload or "default"]
    name = "_".join(part.replace(".", "_") for part in parts)
    if not name.isidentifier():
        raise CorruptEntry(f"program: operator {name!r} is not an identifier")
    return name


def _last_uses(program: Program, function: Function) -> dict[int, list[int]]:
    """For each position of a call, the values that are not used after that call.

    A value that several streams use is kept until the end. If it were freed earlier, the stream
    that allocated its memory could reuse the memory while another stream still works on it.
    """
    first = len(function.inputs) + len(program.constants)
    last: dict[int, int] = {first + i: i for i in range(len(function.calls))}
    for position, call in enumerate(function.calls):
        for value in call.values():
            last[value] = position
    for value in (*values_in(function.outputs), *_on_several_streams(program, function)):
        last.pop(value, None)
    dying: dict[int, list[int]] = {}
    for value, position in last.items():
        dying.setdefault(position, []).append(value)
    return dying


def _on_several_streams(program: Program, function: Function) -> set[int]:
    """Values that are computed or used under more than one stream label."""
    switches = {
        index
        for index, operator in enumerate(program.operators)
        if operator.namespace == STREAMS and operator.name == "fork"
    }
    if not switches:
        return set()
    label = 0
    labels: defaultdict[int, set[int]] = defaultdict(set)
    first = len(function.inputs) + len(program.constants)
    for position, call in enumerate(function.calls):
        if call.operator in switches:
            label = call.args[1]
        for value in (first + position, *call.values()):
            labels[value].add(label)
    return {value for value, met in labels.items() if len(met) > 1}


def call_text(program: Program, call: Call, names: Names) -> str:
    args = [argument_text(names, arg) for arg in call.args]
    target = names.operators[call.operator]
    if not program.operators[call.operator].namespace and target.endswith("getitem"):
        return f"{args[0]}[{args[1]}]"
    kwargs = []
    for name, arg in call.kwargs:
        if not isinstance(name, str) or not name.isidentifier():
            raise CorruptEntry(f"program: keyword {name!r}")
        kwargs.append(f"{name}={argument_text(names, arg)}")
    return f"{target}({', '.join([*args, *kwargs])})"


def argument_text(names: Names, data: Plain) -> str:
    if not isinstance(data, list):
        return repr(data)
    kind, *rest = data
    if kind == VALUE and len(rest) == 1:
        return names.values[rest[0]]
    if kind == FUNCTION and len(rest) == 1:
        return names.functions[rest[0]]
    if kind in ("list", "tuple", "size"):
        items = [argument_text(names, item) for item in rest[0]]
        if kind == "list":
            return f"[{', '.join(items)}]"
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if kind == "slice":
        return f"slice({', '.join(argument_text(names, part) for part in rest)})"
    return _scalar_text(kind, rest)


def _scalar_text(kind: str, rest: list[Plain]) -> str:
    if kind == "bool":
        return "True" if rest[0] else "False"
    if kind == "int":
        return str(int(rest[0]))
    if kind == "float":
        return float_text(rest[0])
    if kind == "complex":
        return f"complex({float_text(rest[0])}, {float_text(rest[1])})"
    if kind == "torch" and str(rest[0]).isidentifier():
        return f"torch.{rest[0]}"
    if kind == "device":
        return f"device({str(rest[0])!r})"
    raise CorruptEntry(f"program: an argument of kind {kind!r}")


def float_text(text: str) -> str:
    value = float.fromhex(text) if "x" in text else float(text)
    return repr(value) if math.isfinite(value) else f'float("{value}")'
