"""The guards of an entry as Python, folded: one line for what holds of many.

Checks that differ in the number of a sibling only are one loop over the numbers, and checks of
several values that are otherwise equal are one loop over the values. `unfold_checks` gives them
back.
"""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.entry.view.graph_text import wrap_parts
from npugx_cache.entry.view.numbered import template

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

_INDEX = re.compile(r"(?<=[\w\])])\[(0|[1-9][0-9]*)\]")
_FEWEST_SIBLINGS = 2
_FEWEST_VALUES = 3
_PATH = re.compile(r"(?<![\w.'\"])[^\W\d]\w*(?:\.\w+|\[(?:\w+|\x01|'[^'\\\]]*')\])+")
_PARTS = re.compile(
    r"\.(?:_forward_hooks|_forward_pre_hooks|__dict__|_parameters|_modules|_buffers|__class__)$"
)
_NAME = re.compile(r"(?P<name>'\w+') (?P<rest>not in (?:vars\(.*\)|globals\(\)|type\(.*))")
_HOLE = "\0"
_NUMBER = "\1"


class Each(NamedTuple):
    """Checks that hold of each of some values; in a form the hole stands for the value."""

    values: tuple[str, ...]
    forms: tuple[str, ...]

    def unfold_lines(self) -> Iterator[str]:
        for value in self.values:
            yield from (form.replace(_HOLE, value) for form in self.forms)


class Siblings(NamedTuple):
    """Checks that hold for each of some numbers."""

    numbers: tuple[int, ...]
    checks: tuple[Each | str, ...]

    def unfold_lines(self) -> Iterator[str]:
        for number in self.numbers:
            for text in unfold_checks(self.checks):
                yield text.replace(_NUMBER, str(number))


Check = Each | Siblings | str


def fold_lines(lines: Iterable[str]) -> list[Check]:
    """Checks as `paths.as_written` writes them, folded."""
    groups: dict[tuple[str, str], dict[int, str]] = {}
    for line in dict.fromkeys(lines):
        prefix, template, number = _split_number(line)
        groups.setdefault((prefix, template), {})[number] = line
    loops: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    rest: list[str] = []
    for (prefix, template), found in groups.items():
        if prefix and len(found) >= _FEWEST_SIBLINGS:
            loops.setdefault((prefix, tuple(sorted(found))), []).append(template)
        else:
            rest += found.values()
    siblings = [
        Siblings(numbers, tuple(_by_value(templates))) for (_, numbers), templates in loops.items()
    ]
    return [*_by_value(rest), *siblings]


def unfold_checks(checks: Iterable[Check]) -> Iterator[str]:
    for check in checks:
        if isinstance(check, str):
            yield check
        else:
            yield from check.unfold_lines()


def without_numbers(line: str) -> str:
    return _INDEX.sub("[]", line)


def _split_number(line: str) -> tuple[str, str, int]:
    """What stands before the first number of a sibling, the check without the number, the number.

    A value that is the number, `layers[3].layer_idx == 3`, is no difference either.
    """
    found = next((each for each in _OUTSIDE.finditer(line) if each[1]), None)
    if found is None or line.startswith(_DISTINCT):
        return "", line, 0
    start = _PATH_BEFORE.search(line[: found.start()])
    prefix = start[0] if start is not None else line[: found.start()]
    number = found[1]
    template = line.replace(f"{prefix}[{number}]", f"{prefix}[{_NUMBER}]")
    if template.endswith(f"_idx == {number}"):
        template = f"{template.removesuffix(number)}{_NUMBER}"
    return prefix, template, int(number)


_OUTSIDE = re.compile(rf"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|{_INDEX.pattern}")
"""A number of a sibling, but not in a text."""

_DISTINCT = "all_distinct("

_PATH_BEFORE = re.compile(r"[^\s(]+$")


def _by_value(lines: Sequence[str]) -> Iterator[Each | str]:
    values: dict[str, list[str]] = {}
    for line in lines:
        form, value = _with_hole(line)
        values.setdefault(form, []).append(value)
    forms: dict[tuple[str, ...], list[str]] = {}
    for form, of in values.items():
        if len(of) >= _FEWEST_VALUES:
            forms.setdefault(tuple(of), []).append(form)
    printed = set()
    for form, of in values.items():
        key = tuple(of)
        if key not in forms:
            yield from (form.replace(_HOLE, value) for value in of)
        elif key not in printed:
            printed.add(key)
            yield Each(key, tuple(forms[key]))


def _with_hole(line: str) -> tuple[str, str]:
    """The check with a hole in the place of the value that it is about, and that value."""
    named = _NAME.fullmatch(line)
    if named is not None:
        return f"{_HOLE} {named['rest']}", named["name"]
    found = _PATH.search(line)
    if found is None:
        return line, ""
    value = _PARTS.sub("", found[0])
    return f"{line[: found.start()]}{_HOLE}{line[found.start() + len(value) :]}", value


# --- as Python


def text_of(checks: Iterable[Check], indent: str) -> Iterator[str]:
    """The lines of a function body in which each check is an assertion.

    A check has names that users chose in it. What is no assertion then becomes a comment.
    """
    checks = list(checks)
    taken = {name for line in unfold_checks(checks) for name in _WORD.findall(line)}
    names = _Variables(_free(("x", "each"), taken), _free(("i", "n"), taken))
    for check in checks:
        lines = list(_text_of(check, indent, names))
        if _asserts_only(lines, indent):
            yield from lines
        else:
            yield from (f"{indent}# {_one_line(line)}" for line in unfold_checks([check]))


class _Variables(NamedTuple):
    """The variables of loops over values, and over numbers."""

    value: str
    number: str


def _free(wanted: tuple[str, ...], taken: Collection[str]) -> str:
    numbered = (f"{wanted[0]}_{serial}" for serial in itertools.count(2))
    return next(name for name in itertools.chain(wanted, numbered) if name not in taken)


def _asserts_only(lines: Sequence[str], indent: str) -> bool:
    """Whether the lines are loops, assertions and comments in the body of a function."""
    text = "\n".join(["def guards():", *lines, f"{indent}pass"])
    if text.splitlines() != text.split("\n"):
        return False
    try:
        module = ast.parse(text)
    except _NO_PYTHON:
        return False
    waiting, last = list(module.body), module.body[-1]
    if len(waiting) != 1 or not isinstance(last, ast.FunctionDef):
        return False
    waiting = last.body[:-1]
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, ast.For):
            waiting += [*statement.body, *statement.orelse]
        elif not isinstance(statement, ast.Assert):
            return False
    return True


def _text_of(check: Check, indent: str, names: _Variables) -> Iterator[str]:
    if isinstance(check, str) and check.startswith(_DISTINCT):
        values = _fold_values(_arguments(check), names.number)
        yield from wrap_parts(f"assert {_DISTINCT}", values, ")", indent)
    elif isinstance(check, str):
        yield indent + _assertion(check.replace(_NUMBER, names.number))
    elif isinstance(check, Siblings):
        yield f"{indent}for {names.number} in {_numbers(check.numbers)}:"
        for inner in check.checks:
            yield from _text_of(inner, f"{indent}    ", names)
    else:
        values = [value.replace(_NUMBER, names.number) for value in check.values]
        assertions = [
            _assertion(f.replace(_HOLE, names.value).replace(_NUMBER, names.number))
            for f in check.forms
        ]
        if all(line.startswith("#") for line in assertions):
            for text in check.unfold_lines():
                yield indent + _assertion(text.replace(_NUMBER, names.number))
            return
        yield from wrap_parts(f"for {names.value} in (", values, "):", indent)
        yield from (f"{indent}    {line}" for line in assertions)


def _arguments(call: str) -> list[str]:
    """The arguments of a call, each as its text; none if the text is no such call."""
    try:
        tree = ast.parse(call, mode="eval").body
    except _NO_PYTHON:
        return []
    text = call.encode()
    given = tree.args if isinstance(tree, ast.Call) else []
    return [text[each.col_offset : each.end_col_offset].decode() for each in given]


def _fold_values(values: list[str], variable: str) -> list[str]:
    """Values one after the other, with those that differ in a number only as one expression."""
    groups: dict[str, list[str]] = {}
    for value in values:
        groups.setdefault(without_numbers(value), []).append(value)
    found: list[str] = []
    for group in groups.values():
        one = template(group, variable) if len(group) >= _FEWEST_SIBLINGS else None
        if one is None:
            found += group
        else:
            numbers = tuple(range(one.first, one.first + len(group)))
            found.append(f"*({one.text} for {variable} in {_numbers(numbers)})")
    return found


def _numbers(numbers: tuple[int, ...]) -> str:
    first, last = numbers[0], numbers[-1]
    if last - first + 1 != len(numbers):
        return str(numbers)
    return f"range({last + 1})" if first == 0 else f"range({first}, {last + 1})"


_CODE = re.compile(r" \(code (\w+)\)")
_TENSOR = re.compile(
    r"check_tensor\((?P<path>.*?), (?P<fact>[^\s,]+, \w+\[[\d*, ]*\], stride=.*)\)"
)


def _assertion(check: str) -> str:
    """A check as a statement; as a comment, if its words are no Python."""
    line = check
    tensor = _TENSOR.fullmatch(line)
    if tensor is not None:
        line = f"check_tensor({tensor['path']}, {tensor['fact']!r})"
    codes = _CODE.findall(line)
    line = _CODE.sub("", line)
    line = re.sub(r" is module ([\w.]+)$", r" is \1", line)
    line = re.sub(r" == torch (\w+)$", r" == torch.\1", line)
    line = re.sub(r" == code (\w+)$", r" == 'code \1'", line)
    try:
        ast.parse(line, mode="eval")
    except _NO_PYTHON:
        return f"# {_one_line(line)}"
    return f"assert {line}" + (f"  # code {', '.join(codes)}" if codes else "")


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


_WORD = re.compile(r"[^\W\d]\w*")
_NO_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What `ast.parse` raises for a text that is no Python, or nested too deeply."""


def of_the_call(line: str, names: Collection[str]) -> bool:
    """Whether a check is about a value of the call; `names` are those of its locals."""
    if _OF_A_CLASS.search(line):
        return False
    found = next((name for name in _ROOT.findall(line) if name not in _WORDS), "")
    return found in names


_OF_A_CLASS = re.compile(r"type\([^()]*(?:\([^()]*\)[^()]*)*\)[.\[]")
_ROOT = re.compile(r"(?<![\w.'\"])[^\W\d]\w*")
_WORDS = frozenset(
    {"type", "len", "list", "set", "tuple", "hasattr", "check_tensor", "all_distinct", "remaining"}
    | {"not", "in", "is", "and", "or", "None", "True", "False", "values", "attribute_names"}
    | {"unshadowed"}
)
