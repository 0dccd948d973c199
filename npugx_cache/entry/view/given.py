"""The inputs of a stored graph: where each comes from, and random values like it, as Python."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.backend.codegen import float_text
from npugx_cache.backend.program import is_dtype
from npugx_cache.conditions import paths
from npugx_cache.errors import CorruptEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npugx_cache.backend.notes import Notes, Size
    from npugx_cache.backend.program import Constant, Program

_TENSOR = re.compile(
    r"(?P<path>.*): [^\s,]+, (?P<dtype>\w+)\[(?P<size>[\d*, ]*)\], "
    r"stride=\((?P<stride>[\d*, ]*)\), (?P<device>[\w:]+)(?:, requires_grad)?"
)
_HELD = re.compile(r"\._(parameters|buffers)\[")
_SIBLING = re.compile(r"\[\d+\]")
_FEWEST_SIBLINGS = 2
_UNKNOWN = 8
"""Stands for a symbolic size in an entry without notes, which does not say what it was."""


class Input(NamedTuple):
    """An input of a graph.

    held: a module holds it, or it is one of many siblings, so that the text has it in a dict.
    dtype: "" for what is neither a tensor nor a number, so far as the entry tells.
    sizes, strides: those of a tensor; a text is symbolic. A number has one "size", its value.
    """

    name: str
    path: str
    held: bool
    dtype: str
    device: str
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...] | None

    @property
    def words(self) -> str:
        if self.strides is None:
            return self.dtype or "?"
        return f"{self.dtype}[{', '.join(map(str, self.sizes))}]"


def inputs_of(program: Program, described: Sequence[str]) -> list[Input]:
    """The inputs of a graph; `described` has a line of the stored text for each."""
    if len(described) != len(program.inputs):
        described = [f"{name}: {name}" for name in program.inputs]
    rows = [_parse_input(text.partition(": ")[2]) for text in described]
    siblings: dict[str, int] = {}
    for path, _ in rows:
        pattern = _SIBLING.sub("[]", paths.as_written(path))
        siblings[pattern] = siblings.get(pattern, 0) + 1
    found, seen = [], set()
    for place, (name, (path, fact)) in enumerate(zip(program.inputs, rows, strict=True)):
        written = " ".join(paths.as_written(path).split())
        many = siblings[_SIBLING.sub("[]", paths.as_written(path))] >= _FEWEST_SIBLINGS
        held = (many or bool(_HELD.search(path))) and written not in seen
        seen.add(written)
        found.append(Input(name, written, held, *_fact(program.notes, place, fact)))
    return found


def _parse_input(text: str) -> tuple[str, re.Match[str] | None]:
    found = _TENSOR.fullmatch(text)
    return (found["path"], found) if found is not None else (text, None)


def _fact(
    notes: Notes | None, place: int, fact: re.Match[str] | None
) -> tuple[str, str, tuple[Size, ...], tuple[Size, ...] | None]:
    if notes is not None:
        dtype, device, sizes, strides = notes.inputs[place]
        return dtype, device, sizes, strides if device else None
    if fact is None:
        return "int", "", ("*",), None
    return fact["dtype"], fact["device"], _sizes(fact["size"]), _sizes(fact["stride"])


def _sizes(text: str) -> tuple[Size, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return tuple(int(part) if part.isdecimal() else part for part in parts)


def assignments(inputs: Iterable[Input], notes: Notes | None) -> list[tuple[Input, str]]:
    """A random value for each input, as Python."""
    examples = dict(notes.examples) if notes is not None else {}
    return [(each, _value(each, examples)) for each in inputs]


def _value(given: Input, examples: dict[str, int | float]) -> str:
    numbers = [_number(size, examples) for size in given.sizes]
    if given.strides is None:
        number = numbers[0] if numbers else 0
        text = float_text(str(number)) if isinstance(number, float) else str(number)
        return f"bool({text})" if given.dtype == "bool" else text
    strides = [int(_number(stride, examples)) for stride in given.strides]
    return tensor(given.name, given.dtype, given.device, list(map(int, numbers)), strides)


def of_constant(constant: Constant) -> str:
    return tensor(
        constant.name, constant.dtype, constant.device, list(constant.size), list(constant.stride)
    )


def tensor(name: str, dtype: str, device: str, size: list[int], stride: list[int]) -> str:
    """A call of `tensor`, a function of the text, which takes the dtype from torch by its name."""
    if not is_dtype(dtype):
        raise CorruptEntry(f"{name}: {dtype!r} is no dtype")
    rest = ""
    if stride != _contiguous(size):
        rest += f", stride={stride}"
    if device != "cpu":
        rest += f", at={device!r}"
    if "mask" in name:
        rest += ", value=1"
    return f"tensor({dtype!r}, {size}{rest})"


def _contiguous(size: list[int]) -> list[int]:
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return strides[::-1]


def _number(size: Size, examples: dict[str, int | float]) -> int | float:
    return examples.get(size, _UNKNOWN) if isinstance(size, str) else size
