"""What an entry is, on half a screen."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from typing import TYPE_CHECKING

from npugx_cache.backend.capture.layout import Role
from npugx_cache.backend.program import HIGHER_ORDER, values_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npugx_cache.backend.program import Operator, Program
    from npugx_cache.entry.view.given import Input

_KINDS = (
    ("attention", re.compile(r"attention|flash|fusion_attn|paged")),
    ("matrix products", re.compile(r"(^|_)(mm|bmm|addmm|baddbmm|matmul|linear|einsum|conv\w*)_?$")),
    (
        "views",
        re.compile(
            r"^(_?unsafe_)?(view|reshape|t|transpose|permute|unsqueeze|squeeze|slice|select|expand|"
            r"as_strided|alias|detach|split\w*|chunk|unbind|_unsafe_view|unfold|narrow|diagonal)$"
        ),
    ),
    (
        "copies",
        re.compile(
            r"^(clone|copy_?|_to_copy|cat|stack|contiguous|index\w*|gather|embedding|scatter\w*)$"
        ),
    ),
    (
        "new tensors",
        re.compile(
            r"^(arange|zeros|ones|full|empty\w*|new_\w+|scalar_tensor|eye|tril|triu|lift\w*)$"
        ),
    ),
    (
        "reductions",
        re.compile(r"^(sum|mean|amax|amin|max|min|var\w*|any|all|argmax|\w*softmax|\w*norm)$"),
    ),
    ("collectives", re.compile(r"^(all_reduce|all_gather|all_to_all|reduce_scatter|wait_tensor)")),
)
OTHERS = "others"
_NAMED = 6
_SHOWN_INPUTS = 12
_COLUMN = 12
_ITEM_BYTES = re.compile(r"(\d+)")


def rows(
    *,
    about: Iterable[tuple[str, str]],
    program: Program | None,
    inputs: Sequence[Input],
    roles: Sequence[Role],
    guards: Mapping[str, int],
    options: Iterable[str],
    passes: Iterable[str],
    sections: str,
) -> Iterator[str]:
    """The lines of the summary."""
    for name, value in about:
        yield from _row(name, [value])
    yield from _row("inputs", _inputs(inputs, _examples(program)))
    if program is not None:
        yield from _row("results", _results(program, inputs))
        yield from _row("dynamic", _dynamic(program, inputs))
        # A layout may call a size written that a tensor is made of.
        written = [
            given.path
            for given, role in zip(inputs, roles, strict=False)
            if role is Role.WRITTEN and given.strides is not None
        ]
        # Nobody knows what a graph inside the graph writes to, so all that it gets counts.
        branches = any(operator.namespace == HIGHER_ORDER for operator in program.operators)
        yield from _row("may write" if branches else "written to", _few(written) or ["no input"])
        yield from _row("operators", _operators(program))
    else:
        yield from _row("operators", ["none"])
    of = ", ".join(f"{count:,} {name}" for name, count in guards.items() if count)
    yield from _row("guards", [f"{sum(guards.values()):,}: {of}"])
    yield from _row("options", list(options) or ["all at their defaults"])
    yield from _row("passes", _flowing(list(passes)))
    yield from _row("more", [sections])


def _row(name: str, values: Sequence[str]) -> Iterator[str]:
    for place, value in enumerate(values):
        yield f"{name if place == 0 else '':<{_COLUMN}}{value}"


def parse_summary(text: str) -> Iterator[tuple[str, str]]:
    """The name and the value of each line of a summary; "" for a line that goes on with the last.

    The title, which is the first line, is left out.
    """
    for line in text.splitlines()[1:]:
        row = line.removeprefix("#").removeprefix(" ")
        if row:
            yield row[:_COLUMN].strip(), row[_COLUMN:]


def _examples(program: Program | None) -> Mapping[str, int | float]:
    return program.notes.examples if program is not None and program.notes is not None else {}


def _inputs(inputs: Sequence[Input], examples: Mapping[str, int | float]) -> list[str]:
    sizes = {size for each in inputs if each.strides is not None for size in each.sizes}
    shown = [each for each in inputs if not each.held and each.name not in sizes]
    width = min(max((len(each.path) for each in shown), default=0), 40)
    lines = [f"{each.path:<{width}}  {each.words}" for each in shown[:_SHOWN_INPUTS]]
    if len(shown) > _SHOWN_INPUTS:
        lines.append(f"and {len(shown) - _SHOWN_INPUTS} more: --section inputs")
    held = [each for each in inputs if each.held]
    if held:
        dtypes = ", ".join(sorted({each.dtype for each in held}))
        found = [_bytes(each, examples) for each in held]
        known = [size for size in found if size is not None]
        more = "" if len(known) == len(found) else " and more"
        held_in = f"{len(held)} tensors that modules or lists hold"
        lines.append(f"{held_in}: {dtypes}, {_size(sum(known))}{more}")
    return lines or ["none"]


def _results(program: Program, inputs: Sequence[Input]) -> list[str]:
    first = len(program.inputs) + len(program.constants)
    words = []
    for value in values_in(program.outputs):
        if value < len(inputs):
            words.append(f"{inputs[value].words}, which is {inputs[value].path}")
        elif value < first:
            words.append("a constant of the graph")
        elif program.notes is not None:
            words.append(program.notes.results.at(value - first))
        else:
            words.append("not noted")
    counted = [f"{text} ({n} times)" if n > 1 else text for text, n in Counter(words).items()]
    return _few(counted) or ["none"]


def _dynamic(program: Program, inputs: Sequence[Input]) -> list[str]:
    if program.notes is None:
        return []
    lines = []
    examples = program.notes.examples
    sizes = dict.fromkeys(size for each in inputs for size in each.sizes if isinstance(size, str))
    for name in {**examples, **sizes}:
        if name.isidentifier():
            was = f"was {examples[name]}" if name in examples else "was not known"
            lines.append(f"{name} {was}{_place(name, inputs)}")
    return _few(lines) or ["nothing: all sizes are fixed"]


def _place(size: str, inputs: Sequence[Input]) -> str:
    """Where a symbolic size is first met."""
    for each in inputs:
        if size in each.sizes:
            dimension = f".size({each.sizes.index(size)})" if each.strides is not None else ""
            return f": {each.path}{dimension}"
    return ""


def _operators(program: Program) -> list[str]:
    names = [plain_name(program.operators[call.operator]) for call in program.calls]
    kinds: dict[str, Counter[str]] = {}
    for name in names:
        kinds.setdefault(_kind(name), Counter())[name] += 1
    lines = [f"{len(names):,}"]
    for kind, counts in sorted(kinds.items(), key=lambda each: -each[1].total()):
        common = ", ".join(f"{name} {count}" for name, count in counts.most_common(_NAMED))
        more = ", ..." if len(counts) > _NAMED else ""
        lines.append(f"{counts.total():>7,} {kind}: {common}{more}")
    return lines


def plain_name(operator: Operator) -> str:
    """The name of an operator without its namespace."""
    name = operator.name
    return name.rpartition(".")[2] if name.startswith(("operator.", "torch.", "math.")) else name


def kind_of(operator: Operator) -> str:
    """What kind of work an operator does, in words."""
    return _kind(plain_name(operator))


def _kind(name: str) -> str:
    return next((kind for kind, found in _KINDS if found.search(name)), OTHERS)


def _few(texts: Sequence[str]) -> list[str]:
    more = [f"and {len(texts) - _NAMED} more"] if len(texts) > _NAMED else []
    return [*texts[:_NAMED], *more]


def _flowing(texts: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + len(text) < 84:
            lines[-1] += f"; {text}"
        else:
            lines.append(text)
    return lines


def _bytes(given: Input, examples: Mapping[str, int | float]) -> int | None:
    """The bytes that a tensor had in the call that was traced; None if nobody noted its sizes."""
    bits = _ITEM_BYTES.search(given.dtype)
    item = max(int(bits[1]) // 8, 1) if bits is not None else 1
    sizes = [size if isinstance(size, int) else examples.get(size) for size in given.sizes]
    known = [int(size) for size in sizes if size is not None]
    return item * math.prod(known) if len(known) == len(sizes) else None


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


def moment(stamp: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(stamp))
