"""Turns a Program into readable Python. This text is what runs, and what `readable` shows.

Does not import torch: `runtime.bind` gives the names in the text their objects.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from npugx_cache.backend import repeats
from npugx_cache.backend.program import (
    FUNCTION,
    HIGHER_ORDER,
    MAIN,
    STREAMS,
    VALUE,
    Operator,
    Program,
    values_in,
)
from npugx_cache.backend.repeats import Loop
from npugx_cache.errors import CorruptEntry
from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npugx_cache.backend.program import Call, Function
    from npugx_cache.backend.repeats import Folded
    from npugx_cache.portable import Plain


CALLS_SAVED = 64
"""How many calls in the text a block saves at least: two small layers load faster as they are."""


def source_text(program: Program, *, saved: int = CALLS_SAVED) -> str:
    """The text of a Python module that defines `forward(*inputs)`, which returns the outputs.

    A graph inside the graph is a function before `forward`, and so is a block of calls that is
    repeated, such as a layer: what a layer adds to the text is one call. Graphs with streams have
    no such blocks. Each intermediate is deleted after its last use, so that memory is freed as
    early as in eager. `saved`: how many calls in the text a block must save.
    """
    writer = _Writer(program)
    for function in program.functions:
        writer.write(function.name, repeats.unfolded(function))
    writer.write(MAIN, _folded(program, saved))
    return "\n\n".join(writer.texts)


def _folded(program: Program, saved: int) -> Folded:
    if any(operator.namespace == STREAMS for operator in program.operators):
        # What several streams use is kept until the end of the graph, and no block ends there.
        return repeats.unfolded(program.main)
    return repeats.fold(program, [""] * len(program.calls), saved=saved)


class Names(NamedTuple):
    """The names that stand for references in the text of one function."""

    operators: list[str]
    values: list[str]
    functions: list[str]


class _Writer:
    """Writes the functions of a program's text; a function stands after those that it calls."""

    def __init__(self, program: Program) -> None:
        self.texts: list[str] = []
        self._program = program
        self._operators = operator_names(program)
        self._functions = [function.name for function in program.functions]
        self._taken = {*self._operators, *self._functions, MAIN}
        for function in (*program.functions, program.main):
            self._taken.update(program.names_in(function))
        self._dying = self._unique("dying")

    def write(self, name: str, folded: Folded, owned: Sequence[int] = ()) -> None:
        """Write a function.

        It deletes its results after their last use, and its parameters of the numbers `owned`,
        which it takes from a list.
        """
        function = folded.function
        names = Names(self._operators, self._program.names_in(function), self._functions)
        first = len(function.inputs) + len(self._program.constants)
        freed = {*owned, *range(first, len(names.values))}
        dying = {
            position: [value for value in values if value in freed]
            for position, values in _last_uses(self._program, function).items()
        }
        lines = [f"    {names.values[value]} = {self._dying}.pop()" for value in owned]
        for item in folded.items:
            if isinstance(item, Loop):
                lines += self._loop(item, function, first, names, dying, freed)
            else:
                lines.append(self._call(function.calls[item], names, dying.get(item, [])))
        parameters = [each for place, each in enumerate(function.inputs) if place not in owned]
        if owned:
            parameters.insert(0, self._dying)
        head = f"def {name}({', '.join(parameters)}):"
        last = f"    return {argument_text(names, function.outputs)}"
        self.texts.append("\n".join([head, *lines, last]) + "\n")

    def _call(self, call: Call, names: Names, dead: Sequence[int]) -> str:
        line = f"    {call.name} = {call_text(self._program, call, names)}"
        return f"{line}; del {', '.join(names.values[v] for v in dead)}" if dead else line

    def _loop(
        self,
        loop: Loop,
        function: Function,
        first: int,
        names: Names,
        dying: dict[int, list[int]],
        freed: set[int],
    ) -> list[str]:
        """The lines of the copies of a block: a call of the block for each.

        What a copy takes may die in the copy, and then the block must free it. So the block owns
        such parameters: it takes them from a list, because a call keeps its arguments as long as it
        lasts, if it has more than thirty or if Dynamo looks at each frame. A copy that would return
        a result that nothing uses would keep the result for too long: its calls stay as they are.
        """
        copies = [
            _Copy(
                taken=loop.arguments(copy, first),
                given_back=loop.given_back(copy, first),
                dead={value for call in loop.calls(copy) for value in dying.get(call, [])},
                calls=loop.calls(copy),
            )
            for copy in range(loop.copies)
        ]
        name, owned = "", []
        if sum(each.is_exact() for each in copies) > 1:
            name = self._unique("block")
            takes = zip(*(each.taken for each in copies), strict=True)
            owned = [place for place, values in enumerate(takes) if freed.intersection(values)]
            self.write(name, self._with_parameters(loop.block), owned)
        lines: list[str] = []
        for copy in copies:
            if name and copy.is_exact():
                lines.append(self._call_of_block(name, copy, owned, names))
            else:
                for position in copy.calls:
                    dead = dying.get(position, [])
                    lines.append(self._call(function.calls[position], names, dead))
        return lines

    def _call_of_block(self, name: str, copy: _Copy, owned: Sequence[int], names: Names) -> str:
        arguments = [
            names.values[value] for place, value in enumerate(copy.taken) if place not in owned
        ]
        line = ""
        if owned:
            handed = [copy.taken[place] for place in owned]
            texts = [names.values[value] for value in reversed(handed)]
            line = f"{self._dying} = [{', '.join(texts)}]; "
            if dead := [names.values[v] for v in dict.fromkeys(handed) if v in copy.dead]:
                line += f"del {', '.join(dead)}; "
            arguments.insert(0, self._dying)
        if copy.given_back:
            line += f"{', '.join(names.values[value] for value in copy.given_back)} = "
        return f"    {line}{name}({', '.join(arguments)})"

    def _with_parameters(self, block: Folded) -> Folded:
        """The block with names for its parameters that no value or global of the program has.

        Other blocks may use the names too, because a function sees its own parameters alone.
        """
        names = []
        for name in block.function.inputs:
            while name in self._taken:
                name += "_"  # noqa: PLW2901 - until it is free
            names.append(name)
        return block._replace(function=block.function._replace(inputs=tuple(names)))

    def _unique(self, wanted: str) -> str:
        while wanted in self._taken:
            wanted += "_"
        self._taken.add(wanted)
        return wanted


class _Copy(NamedTuple):
    """A copy of a block: the values that it takes and gives back, and those that die in it."""

    taken: list[int]
    given_back: list[int]
    dead: set[int]
    calls: range

    def is_exact(self) -> bool:
        """Whether all that the block gives back is used later."""
        return self.dead.isdisjoint(self.given_back)


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
    return "_".join([operator.namespace, operator.name, operator.overload or "default"])


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
    kwargs = [f"{name}={argument_text(names, arg)}" for name, arg in call.kwargs]
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
    if kind == "torch":
        return f"torch.{rest[0]}"
    if kind == "device":
        return f"device({str(rest[0])!r})"
    raise CorruptEntry(f"program: an argument of kind {kind!r}")


def float_text(text: str) -> str:
    value = float.fromhex(text) if "x" in text else float(text)
    return repr(value) if math.isfinite(value) else f'float("{value}")'
