"""An entry as one Python file for people: what it is, the graph, what must hold for it.

The file is made when somebody reads it, from what an entry stores anyway. `python FILE` runs the
graph on random inputs of the recorded sizes, with torch alone where the operators are torch's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npugx_cache.backend.options.table import Options
from npugx_cache.conditions import paths
from npugx_cache.conditions.data import Step
from npugx_cache.entry.view import (
    given,
    graph_text,
    guards,
    needs,
    numbered,
    stored_text,
    summary,
)
from npugx_cache.entry.view.graph_text import HELD
from npugx_cache.entry.view.sections import OVERVIEW, SECTIONS, STORED
from npugx_cache.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npugx_cache.backend.program import Program
    from npugx_cache.conditions import Conditions
    from npugx_cache.entry.artifact import Bindings
    from npugx_cache.entry.view.stored_text import StoredText


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What an entry holds, decoded."""

    entry: str
    created: float
    seconds: float
    text: StoredText
    program: Program | None
    bindings: Bindings
    conditions: Conditions


TO_BE_READ = 'raise SystemExit("this text is to be read, not to be run")'
"""The first line of what is shown as it is stored."""


def page(stored: Stored, section: str) -> str:
    """The text of a section; all but `sections.ALL`."""
    shown = _Page(stored)
    if section == OVERVIEW:
        lines = [*shown.summary(), *shown.graph(), *shown.guards(everything=False), *shown.end()]
    elif section == "summary":
        lines = [*shown.summary()]
    elif section == "graph":
        lines = [*shown.graph(), *shown.end()]
    elif section == "guards":
        lines = [*shown.guards(everything=True)]
    elif section == "code":
        lines = [TO_BE_READ, "", *stored.text.parts.get(STORED[section], [])]
    else:
        lines = [*_comments(stored.text.parts.get(STORED[section], []))]
    return "\n".join(lines).strip("\n") + "\n"


def to_be_read(text: str) -> str:
    """A stored text behind a line that ends a program that runs it: anybody may have written it."""
    return f"{TO_BE_READ}\n\n{text}"


def _comments(lines: Iterable[str]) -> Iterator[str]:
    """Lines of a stored text of which each is to be a comment, also if it is stored as code."""
    return (line if not line or line.startswith("#") else f"# {line}" for line in lines)


class _Page:
    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._program = stored.program
        described = stored.text.comments(stored_text.INPUTS)
        self._inputs = given.inputs_of(stored.program, described) if stored.program else []
        tree = stored.conditions
        self._locals = {
            str(arg) for step, arg in zip(tree.steps, tree.args, strict=True) if step == Step.LOCAL
        }
        checks = [paths.as_written(one_line(line)) for line in stored.text.guards]
        self._checks: dict[str, list[str]] = {"of the call": [], "of torch's state": []}
        self._checks["of code that was traced"] = []
        for check in checks:
            self._checks[self._kind(check)].append(check)

    def _kind(self, check: str) -> str:
        if check.startswith("torch_state["):
            return "of torch's state"
        if guards.of_the_call(check, self._locals):
            return "of the call"
        return "of code that was traced"

    def summary(self) -> Iterator[str]:
        stored, text = self._stored, self._stored.text
        key = dict(line.split(" = ", 1) for line in text.comments(stored_text.KEY) if " = " in line)
        versions = (f"{name} {key[name].split()[0]}" for name in ("torch", "python") if name in key)
        made = [
            *versions,
            key.get("platform", ""),
            key.get("cpu", ""),
            f"backend {key.get('backend', '?')}",
            *([f"dynamic={key['dynamic']}"] if "dynamic" in key else []),
        ]
        created = summary.moment(stored.created)
        about = [
            ("entry", f"{stored.entry[:12]}, made {created} in {stored.seconds:.1f} s"),
            ("made for", ", ".join(part for part in made if part)),
        ]
        layout = stored.bindings.layout
        yield f"# {text.title}"
        yield "#"
        rows = summary.rows(
            about=about,
            program=self._program,
            inputs=self._inputs,
            roles=layout.roles if layout is not None else (),
            guards={name: len(found) for name, found in self._checks.items()},
            options=_options(key),
            passes=_passes(text.comments(stored_text.PASSES)),
            sections=f"--section {', '.join(SECTIONS[1:])}",
        )
        yield from (f"# {one_line(line)}".rstrip() for line in rows)

    def graph(self) -> Iterator[str]:
        program = self._program
        if program is None:
            yield from ("", "# no tensor operations")
            return
        used = {operator.name.partition(".")[0] for operator in program.operators}
        yield from ("", "import sys")
        yield from (f"import {name}" for name in ("math", "operator") if name in used)
        yield from ("", "import torch", "from torch import device", "")
        yield from needs.check(program, self._inputs)
        yield from (f"{name} = torch.ops.{name}" for name in graph_text.namespaces(program))
        yield from _TENSOR.splitlines()
        yield from self._constants(program)
        yield from graph_text.graph_text(program, self._inputs)
        yield from self._input_lines(program)

    @staticmethod
    def _constants(program: Program) -> Iterator[str]:
        if program.constants:
            yield from ("", "", "# Constants of the graph; the entry has their values.")
        names = graph_text.constants(program)
        for name, constant in zip(names, program.constants, strict=True):
            yield f"{name} = {given.of_constant(constant)}"

    def _input_lines(self, program: Program) -> Iterator[str]:
        values = given.assignments(self._inputs, program.notes)
        names = graph_text.parameters(program, self._inputs)
        yield from ("", "", "def inputs():", '    """Random inputs of the recorded sizes."""')
        yield "    torch.manual_seed(0)"
        lines = []
        if HELD in names.values() or any(each.held for each, _ in values):
            yield f"    {HELD} = {{}}"
            lines = [f"{HELD}[{each.path!r}] = {text}" for each, text in values if each.held]
        yield from _loops(lines)
        passed = [f"{names[each.name]}={text}" for each, text in values if not each.held]
        passed += [f"{HELD}={HELD}"] if lines else []
        yield from graph_text.wrap_parts("return dict(", passed, ")", "    ")

    def guards(self, *, everything: bool) -> Iterator[str]:
        yield from ("", "", "def guards():")
        yield '    """What must hold for the graph to run. To be read: nothing calls it."""'
        empty = True
        for kind, checks in self._checks.items():
            if not checks:
                continue
            if not everything and kind != "of the call":
                yield f"    # {len(checks)} {kind}: --section guards"
                continue
            yield f"    # {len(checks)} {kind}"
            for line in guards.text_of(guards.fold_lines(checks), "    "):
                yield line
                empty = empty and line.strip().startswith("#")
        if empty:
            yield "    return"

    def end(self) -> Iterator[str]:
        if self._program is not None:
            yield from _MAIN.splitlines()


def _options(key: dict[str, str]) -> list[str]:
    """The options of an entry that are not at their defaults, as `name=value`."""
    options = Options()
    defaults = dict(options.as_factors())
    given = ((name.partition(".")[2], value) for name, value in key.items() if _is_option(name))
    return [
        f"{name}={value}"
        for name, value in given
        if value != defaults.get(name, repr(getattr(options, name, None)))
    ]


def _is_option(name: str) -> bool:
    return name.startswith("option.")


def _passes(lines: Iterable[str]) -> Iterator[str]:
    """The passes that did something."""
    return (line for line in lines if ": 0 rewrites, 0 nodes" not in line)


def _loops(lines: Iterable[str]) -> Iterator[str]:
    """Statements, with those that differ in the number of a sibling only as loops."""
    waiting: dict[str, list[str]] = {}
    for line in lines:
        waiting.setdefault(guards.without_numbers(line), []).append(line)
    loops: dict[int, list[str]] = {}
    for group in waiting.values():
        found = numbered.template(group, "i") if len(group) > 1 else None
        if found is None or found.first:
            yield from (f"    {line}" for line in group)
        else:
            loops.setdefault(len(group), []).append(found.text)
    for count, texts in loops.items():
        yield f"    for i in range({count}):"
        yield from (f"        {text}" for text in texts)


_TENSOR = '''

def tensor(dtype, size, *, stride=None, at="cpu", value=0):
    """Random numbers; integers are all `value`, because they may be indices."""
    dtype, count = getattr(torch, dtype), 1
    for n, step in zip(size, stride or ()):
        count += (n - 1) * step
    count = count if all(size) else 0
    shape = [count] if stride else size
    if dtype.is_floating_point or dtype.is_complex:
        made = (torch.randn(shape) * 0.1).to(dtype)
    else:
        made = torch.full(shape, value or dtype is torch.bool, dtype=dtype)
    return (made.as_strided(size, stride) if stride else made).to(at)
'''

_MAIN = """

def main():
    if CANNOT_RUN:
        sys.exit(f"this graph can't run here: {CANNOT_RUN}")
    with torch.no_grad():
        results = forward(**inputs())
    show(results)


def show(results, name="result"):
    if isinstance(results, (list, tuple)):
        for place, each in enumerate(results):
            show(each, f"{name}[{place}]")
    elif isinstance(results, torch.Tensor):
        print(name, str(results.dtype).removeprefix("torch."), list(results.shape))
    else:
        print(name, results)


if __name__ == "__main__":
    main()
"""
