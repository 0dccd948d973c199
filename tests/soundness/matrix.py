"""The matrix: what can change between two starts of a worker, and what the cache must do about it.

`python matrix.py` prints it as a table, `python matrix.py count` the number of rows per category.

The rows stand in `rows/CATEGORY.txt`, one package of source files each:

    ### name
    # says: text            a reason of `.explain()` contains the text
    # hit                   the change must not cost a compile; without it, it must
    # same result           the change does not change eager's result
    # bypass                the changed call can't be cached at all
    # refused: text         no call can be cached, for a reason that contains the text
    # args: ...             arguments of `f`, in Python; `tensor(3)` without it
    # then: ...             its arguments in the second process
    # arguments: ...        of `cache_compile`
    # before: MODEL         put the text of that name below before the source
    # edit FILE: old -> new (Python strings) an edit of a file for the second process
    # older: refused: text  (or `says: text`) with torch before 2.13, for these and `bypass`

followed by the source of `main`, and that of other files after `#### file`. `main` defines what is
cached, `f`; or `make(cached) -> (call, ...)`. `run(call, ...)` calls it. Changes other than edits
are `change(call, ...)` and the context `around()` of the second call.

A row that says none of `hit`, `bypass` and `refused` must miss.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from npugx_cache._compat.runtime import torch_version

OLDER = torch_version() < (2, 13)
"""Whether torch guards less than CI's: `npugx_cache/_compat/older_walks.py` and its like."""

HEAD = """\
import collections, contextlib, dataclasses, enum, functools, math, operator, os, typing
import torch
from torch import nn
from torch.nn import functional


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


"""
MAKE = """

def make(cached):
    return cached(f{arguments}), GIVEN


def run(call, given):
    return call(*given[0]())


GIVEN = [lambda: ({args},)]
"""
THEN = """

def change(call, given):
    given[:] = [lambda: ({then},)]
"""
RUN = """

def run(call, *args):
    return call(tensor(3))
"""
TEXTS = {
    "MODEL": """\
class Base(nn.Module):
    factor = 2

    def __init__(self):
        super().__init__()
        self.scale = 2
        self.config = {"a": 1, "b": 2}
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.5)

    @property
    def size(self):
        return self.scale + 1

    @staticmethod
    def fixed(x):
        return x - 1

    @classmethod
    def of_class(cls, x):
        return x * cls.factor

    def helper(self, x):
        return x * 1.5


class Model(Base):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        x = self.helper(self.fixed(self.of_class(x))) * self.size
        if self.training:
            x = x * 2
        for name, value in self.config.items():
            x = x * 0.5 + value + len(name)
        return x


def make(cached):
    model = Model().eval()
    return cached(model.forward), model, tensor(2, 3)


def run(call, model, x):
    return call(x)


""",
    "OBJECT": """\
class Box:
    def __init__(self, n=2):
        self.n = n

    def __len__(self):
        return 2

    def __bool__(self):
        return True

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1

    def __contains__(self, item):
        return True

    def __getitem__(self, i):
        return i + 2

    def __getattr__(self, name):
        return len(name)

    def __call__(self, x):
        return x * self.n

    def __enter__(self):
        return 4

    def __exit__(self, *error):
        return None

    def __iter__(self):
        return iter([1, 2])

    def __add__(self, other):
        return 9


BOX = Box()

""",
    "NAMES": """\
NAMES = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota"]


def walk(x, names):
    for name in names:
        x = x * 1.5 + len(name) + ord(name[0]) / 16
    return x


""",
}
"""Source that many rows have in common."""


@dataclass(frozen=True, kw_only=True)
class Row:
    category: str
    program: str
    files: dict[str, str]
    edits: list[tuple[str, str, str]]
    says: list[str]
    hit: bool
    same_result: bool
    bypass: bool
    refused: str | None

    @property
    def main(self) -> str:
        return self.files["main"]

    @property
    def change(self) -> str:
        """What is different in the second process, on one line."""
        edits = [f"{file}: {old!r} -> {new!r}" for file, old, new in self.edits]
        bodies = re.findall(
            r"^def (?:change|around)\(.*\n((?:    .*\n?)+)", self.main, re.MULTILINE
        )
        called = (" ".join(body.split()) for body in bodies)
        called = (body.replace("given[:] = [lambda: ", "arguments: [") for body in called)
        return "; ".join([*edits, *called])

    @property
    def expectation(self) -> str:
        refuse = self.bypass or self.refused is not None
        return "must hit" if self.hit else "must refuse" if refuse else "must miss"

    @property
    def can_happen_live(self) -> bool:
        return "\ndef change(" in self.main or "\ndef around(" in self.main


def parse(category: str, text: str) -> Row:
    header = re.match(r"(?:# .*\n)*", text)
    assert header is not None
    options = _options(header[0].splitlines())
    program, *others = re.split(r"^#### ", text[header.end() :], flags=re.MULTILINE)
    main = "".join(TEXTS[name] for name in options.get("before", ())) + program.strip() + "\n"
    if "def make(" not in main:
        main += MAKE.format(
            args=options.get("args", ["tensor(3)"])[0].rstrip(","),
            arguments="".join(f", {each}" for each in options.get("arguments", ())),
        )
        main += "".join(THEN.format(then=then) for then in options.get("then", ()))
    elif "def run(" not in main:
        main += RUN
    files = {"main": HEAD + main}
    for other in others:
        name, _, source = other.partition("\n")
        files[name.strip()] = HEAD + source.strip() + "\n"
    return Row(
        category=category,
        program=program.strip(),
        files=files,
        edits=[_edit(line) for line in options.get("edit", ())],
        says=options.get("says", []),
        hit="hit" in options,
        same_result="same" in options or "hit" in options,
        bypass="bypass" in options or "refused" in options,
        refused=options["refused"][0] if "refused" in options else None,
    )


def _options(lines: list[str]) -> dict[str, list[str]]:
    lines = [line.removeprefix("# ") for line in lines]
    older = [line.removeprefix("older: ") for line in lines if line.startswith("older: ")]
    lines = [line for line in lines if not line.startswith("older: ")]
    if older and OLDER:
        replaced = ("says: ", "refused: ", "bypass")
        lines = [line for line in lines if not line.startswith(replaced)] + older
    options: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        options.setdefault(name.partition(" ")[0], []).append(
            f"{name.partition(' ')[2]} {value}".strip()
        )
    return options


def _edit(line: str) -> tuple[str, str, str]:
    file, _, rest = line.partition(" ")
    # Two Python strings around an arrow: the text between them is the only ` -> ` outside both.
    for match in re.finditer(" -> ", rest):
        try:
            old, new = rest[: match.start()], rest[match.end() :]
            return file, ast.literal_eval(old), ast.literal_eval(new)
        except SyntaxError:
            continue
    raise ValueError(line)


def _load(folder: str) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for path in sorted((Path(__file__).parent / folder).glob("*.txt")):
        for block in re.split(r"^### ", path.read_text(), flags=re.MULTILINE)[1:]:
            name, _, text = block.partition("\n")
            assert name not in rows, name
            rows[name] = parse(path.stem, text)
    return rows


ROWS = _load("rows")
ORDER = _load("order")
"""Rows about the order of sets. What changes is the hash seed of the process."""
COUNTS = Counter(row.category for row in ROWS.values())


def print_counts() -> None:
    for category, count in sorted(COUNTS.items()):
        expected = Counter(r.expectation for r in ROWS.values() if r.category == category)
        print(f"{category:12} {count:4}  {dict(expected)}")
    print(f"{'all':12} {len(ROWS):4}")


def print_table() -> None:
    for name, row in ROWS.items():
        print(f"{row.category}/{name}: {row.expectation}")
        print(f"    program: {' '.join(row.program.split())[:160]}")
        print(f"    change:  {row.change[:160]}")


if __name__ == "__main__":
    print_counts() if "count" in sys.argv else print_table()
