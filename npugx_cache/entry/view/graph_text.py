"""The graph of an entry as Python that runs with torch alone: repeated layers are one function."""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING

from npugx_cache.backend import repeats
from npugx_cache.backend.codegen import Names, argument_text, call_text
from npugx_cache.backend.program import HIGHER_ORDER, MAIN
from npugx_cache.backend.repeats import Folded, Loop
from npugx_cache.conditions import paths
from npugx_cache.entry.view.numbered import template

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from npugx_cache.backend.program import Operator, Program
    from npugx_cache.entry.view.given import Input

HELD = "w"
"""The dict in the text that has the tensors that modules hold, by their paths."""

OPERATORS = "OPERATORS"
"""The name in the text of the table of operators on graphs."""

_LINES_SAVED = 12
"""A block is a function of its own in the text if that saves so many lines."""

VARIABLES = "ijklmn"
_RESERVED = frozenset(
    {"torch", "device", "operator", "math", "sys", "main", "inputs", "tensor", "results", "show"}
    | {"guards", "CANNOT_RUN", "npugx_cache", "range", "getattr", "hasattr", "print", "len", "list"}
    | {"abs", "max", "min", "round", "slice", "float", "complex", "bool", "dict", "zip", "str"}
    | {"all", "enumerate", "isinstance", "tuple"}
    | {HELD, MAIN, OPERATORS, *VARIABLES}
)
_WIDTH = 100
_COMMENT = 64
_NAMED = 2
_INDEX = re.compile(r"\[(\d+)\]")
_SYMBOL = re.compile(r"\b[su]\d+\b")
_NO_NAME = re.compile(r"\W+", re.ASCII)


def graph_text(program: Program, inputs: Sequence[Input]) -> Iterator[str]:
    """The lines that define `forward`, and before it a function for each repeated block."""
    writer = _Writer(program)
    for function, name in zip(program.functions, writer.functions, strict=True):
        whole = repeats.unfolded(function)
        taken = set(writer.taken)
        names = [_unique(each, taken) for each in function.inputs]
        yield from _Body(writer, whole, name, names, names, [], 0).lines()
    named = parameters(program, inputs)
    texts = [f"{HELD}[{each.path!r}]" if each.held else named[each.name] for each in inputs]
    given = [*named.values(), *([HELD] if len(named) < len(inputs) else [])]
    main = _Body(writer, fold_repeats(program), MAIN, given, texts, writer.modules(), 0)
    for body in main.bodies():
        yield from body.lines()


def parameters(program: Program, inputs: Iterable[Input]) -> dict[str, str]:
    """The parameter of `forward` for each input that is no item of the dict."""
    taken = set(_Writer(program).taken)
    return {each.name: _unique(each.name, taken) for each in inputs if not each.held}


def fold_repeats(program: Program) -> Folded:
    """The graph with its repeats folded, as the text shows it."""
    return repeats.fold(program, _Writer(program).labels(), saved=_LINES_SAVED)


def modules(program: Program) -> list[str]:
    """The name of the module that each call of the graph belongs to; empty without notes."""
    return _Writer(program).modules()


def constants(program: Program) -> list[str]:
    """The names of the constants in the text."""
    return _Writer(program).constants


def namespaces(program: Program) -> list[str]:
    """The namespaces of operators in the text, where `aten` stands for `torch.ops.aten`."""
    found = {operator.namespace for operator in program.operators}
    return sorted(found - {"", HIGHER_ORDER} - _RESERVED)


class _Writer:
    """What the functions of the text have in common."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.taken = {*_RESERVED, *namespaces(program)}
        self.functions = [self.name(function.name) for function in program.functions]
        self.constants = [self.name(constant.name) for constant in program.constants]
        self.operators = [_operator(operator) for operator in program.operators]

    def name(self, wanted: str) -> str:
        """A global name like `wanted`, which is taken from then on."""
        return _unique(wanted, self.taken)

    def labels(self) -> list[str]:
        notes = self.program.notes
        if notes is None:
            return [""] * len(self.program.calls)
        # A symbol has another name in each copy of a block, such as the length of a layer's cache.
        texts = (_kind_of_a_number(text) or text for text in notes.results.texts)
        results = [_SYMBOL.sub("s", text) for text in texts]
        places = zip(notes.results.places, notes.lines.places, strict=True)
        return [f"{results[result]} {line}" for result, line in places]

    def modules(self) -> list[str]:
        notes = self.program.notes
        if notes is None:
            return []
        names = [in_a_comment(paths.of_module(text)) for text in notes.modules.texts]
        return [names[place] for place in notes.modules.places]


class _Body:
    """One function of the text: a repeated block, or the graph itself."""

    def __init__(
        self,
        writer: _Writer,
        folded: Folded,
        name: str,
        parameters: list[str],
        inputs: list[str],
        modules: list[str],
        depth: int,
    ) -> None:
        self.name = name
        self._writer, self._folded, self._modules = writer, folded, modules
        self._depth = depth
        self._parameters = parameters
        self._taken = {*writer.taken, *parameters}
        self._values = [*inputs, *writer.constants]
        self._first = len(self._values)
        self._values += [""] * len(folded.function.calls)
        self._blocks: dict[int, tuple[_Body, list[str], list[str]]] = {}
        for item in folded.items:
            if isinstance(item, Loop):
                self._add(item)
            else:
                wanted = folded.function.calls[item].name
                self._values[self._first + item] = _unique(wanted, self._taken)

    def bodies(self) -> Iterator[_Body]:
        """The function and those that it calls, in the order in which they are defined."""
        for body, _, _ in self._blocks.values():
            yield from body.bodies()
        yield self

    def _add(self, loop: Loop) -> None:
        calls = self._folded.function.calls
        carried = [_unique("hidden", self._taken) for _ in loop.carried]
        variables = []
        for call in loop.results:
            kept = [name for name, (_, at) in zip(carried, loop.carried, strict=True) if at == call]
            wanted = calls[loop.start + loop.period * (loop.copies - 1) + call].name
            variables.append(kept[0] if kept else _unique(wanted, self._taken))
        for variable, call in zip(variables, loop.results, strict=True):
            for copy in range(loop.copies):
                value = self._first + loop.start + copy * loop.period + call
                listed = f"{variable}_of_each[{copy}]" if call in loop.each else ""
                self._values[value] = listed or variable
        variable = VARIABLES[min(self._depth, len(VARIABLES) - 1)]
        modules = modules_of(loop, self._modules, variable)
        taken = {*self._writer.taken, *(call.name for call in loop.block.function.calls)}
        parameters = [_unique("hidden", taken) for _ in carried]
        parameters += [_unique(self._short(values), taken | {HELD}, taken) for values in loop.given]
        name = self._writer.name(name_of_block(modules))
        block = _Body(
            self._writer, loop.block, name, parameters, parameters, modules, self._depth + 1
        )
        self._blocks[loop.start] = block, carried, variables

    def _short(self, values: tuple[int, ...]) -> str:
        """The name of a parameter, after what the first copy gets for it."""
        text = self._values[values[0]]
        if text.isidentifier():
            return text
        path = text.partition("[")[2].strip("[]'\"")
        last = list(_INDEX.finditer(path))
        tail = path[last[-1].end() :] if last and len(set(values)) > 1 else path
        name = _NO_NAME.sub("_", tail).strip("_") or _NO_NAME.sub("_", path).strip("_")
        return next(filter(str.isidentifier, (name, f"v_{name}")), "value")

    def lines(self) -> Iterator[str]:
        yield from ("", "")
        yield from wrap_parts(f"def {self.name}(", self._parameters, "):", "")
        program, function = self._writer.program, self._folded.function
        names = Names(self._writer.operators, self._values, self._writer.functions)
        module = ""
        for item in self._folded.items:
            if isinstance(item, Loop):
                yield from self._loop(item)
                module = ""
                continue
            if self._modules and self._modules[item] != module:
                module = self._modules[item]
                yield f"    # {module}" if module else "    # outside of modules"
            call = function.calls[item]
            text = f"    {self._values[self._first + item]} = {call_text(program, call, names)}"
            yield self._with_note(text, item)
        yield f"    return {argument_text(names, function.outputs)}"

    def _with_note(self, text: str, item: int) -> str:
        notes = self._writer.program.notes
        if notes is None or not self._folded.origins:
            return text
        origin = self._folded.origins[item]
        line = notes.lines.at(origin).rpartition("/")[2]
        result = notes.results.at(origin)
        result = _kind_of_a_number(result) or result
        note = "  ".join(filter(None, map(in_a_comment, (result, line))))
        return f"{text:<{_COMMENT}}  # {note}" if note else text

    def _loop(self, loop: Loop) -> Iterator[str]:
        block, carried, variables = self._blocks[loop.start]
        variable = VARIABLES[min(self._depth, len(VARIABLES) - 1)]
        for name, (value, _) in zip(carried, loop.carried, strict=True):
            yield f"    {name} = {self._values[value]}"
        listed = [
            name for name, call in zip(variables, loop.results, strict=True) if call in loop.each
        ]
        yield from (f"    {name}_of_each = []" for name in listed)
        texts = [[self._values[value] for value in values] for values in loop.given]
        names = block._parameters[len(carried) :]  # noqa: SLF001 - of the same class
        first, arguments = 0, list(carried)
        folded = [template(each, variable) if len(set(each)) > 1 else None for each in texts]
        starts = {each.first for each in folded if each is not None}
        starts = starts or self._first_modules(loop, variable)
        first = min(starts) if len(starts) == 1 else 0
        for name, each, found in zip(names, texts, folded, strict=True):
            if len(set(each)) == 1:
                arguments.append(each[0])
            elif found is not None and found.first == first:
                arguments.append(f"{name}={found.text}")
            else:
                at = variable if first == 0 else f"{variable} - {first}"
                arguments.append(f"{name}=[{', '.join(each)}][{at}]")
        counted = f"{loop.copies}" if first == 0 else f"{first}, {first + loop.copies}"
        yield f"    for {variable} in range({counted}):"
        target = f"{', '.join(variables)} = " if variables else ""
        yield from wrap_parts(f"{target}{block.name}(", arguments, ")", " " * 8)
        yield from (f"        {name}_of_each.append({name})" for name in listed)
        for name, (_, call) in zip(carried, loop.carried, strict=True):
            given = variables[loop.results.index(call)]
            if given != name:
                yield f"        {name} = {given}"

    def _first_modules(self, loop: Loop, variable: str) -> set[int]:
        """The numbers that the modules of the first copy have, which those of the others follow."""
        end = loop.start + loop.period * loop.copies
        lines = range(loop.start, loop.start + loop.period) if self._modules else ()
        found = (template(self._modules[line : end : loop.period], variable) for line in lines)
        return {each.first for each in found if each is not None}


def _kind_of_a_number(result: str) -> str:
    """The type of a result that is a number: its name is another one in each copy of a block."""
    kind, _, rest = result.partition(" ")
    return kind if kind in ("int", "float", "bool") and rest else ""


def _operator(operator: Operator) -> str:
    if not operator.namespace:
        return operator.name.removeprefix("builtins.")
    if operator.namespace == HIGHER_ORDER:
        return f'{OPERATORS}["{operator.name}"]'
    parts = [operator.namespace, operator.name, operator.overload or "default"]
    text = "torch.ops" if parts[0] in _RESERVED else parts.pop(0)
    for part in parts:
        text = f'getattr({text}, "{part}")' if keyword.iskeyword(part) else f"{text}.{part}"
    return text


def _unique(wanted: str, taken: set[str], *others: set[str]) -> str:
    wanted = f"{wanted}_" if keyword.iskeyword(wanted) else wanted
    name, serial = wanted, 2
    while name in taken:
        name, serial = f"{wanted}_{serial}", serial + 1
    for names in (taken, *others):
        names.add(name)
    return name


def modules_of(loop: Loop, modules: Sequence[str], variable: str) -> list[str]:
    """The modules that the calls of a block are from, of all its copies; [] if none are known."""
    end = loop.start + loop.period * loop.copies
    return [
        _module_of_copies(modules[place : end : loop.period], variable)
        for place in (range(loop.start, loop.start + loop.period) if modules else ())
    ]


def _module_of_copies(names: Sequence[str], variable: str) -> str:
    """The module that a line of all copies is from, with the number in which the copies differ."""
    found = template(names, variable)
    if found is not None:
        return found.plain
    distinct = list(dict.fromkeys(names))
    if len(distinct) == 1:
        return distinct[0]
    distinct = [name or "outside of modules" for name in distinct]
    return " or ".join([*distinct[:_NAMED], *(["..."] if len(distinct) > _NAMED else [])])


def name_of_block(modules: Iterable[str]) -> str:
    """`layer` for the modules `model.layers[i]`, if a block is one of those."""
    for module in modules:
        found = re.match(rf".*?(\w+)\[[{VARIABLES}]\]", module, re.ASCII)
        if found is not None:
            name = found[1].removesuffix("s")
            return name if name.isidentifier() else "block"
    return "block"


def in_a_comment(text: str) -> str:
    return " ".join(text.split())


def wrap_parts(begin: str, parts: Sequence[str], end: str, indent: str) -> Iterator[str]:
    """A call or a head with these parts, on as many lines as needed."""
    whole = f"{indent}{begin}{', '.join(parts)}{end}"
    if len(whole) <= _WIDTH:
        yield whole
        return
    yield f"{indent}{begin}"
    line = f"{indent}    "
    for part in parts:
        keyword = "=" in part.partition("[")[0]
        if len(line) > len(indent) + 4 and (keyword or len(f"{line}{part},") > _WIDTH):
            yield line.rstrip()
            line = f"{indent}    "
        line += f"{part}, "
        if keyword:
            yield line.rstrip()
            line = f"{indent}    "
    if line.strip():
        yield line.rstrip()
    yield f"{indent}{end}"
