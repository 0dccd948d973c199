"""The matrix: what can change between two starts of a worker, and what the cache must do about it.

`python matrix.py` prints it as a table, `python matrix.py count` the number of rows per category.

The rows stand in `rows/CATEGORY.txt`, one package of source files each:

    ### name
    # says: text            a reason of `.explain()` contains the text
    # says since 2.12: text      the same, from that torch on
    # hit                   the change must not cost a compile; without it, it must
    # hit since 2.13        the same, from that torch on
    # same result           the change does not change eager's result
    # bypass                the changed call can't be cached at all
    # bypass since 2.15     the same, from that torch on
    # refused: text         no call can be cached, for a reason that contains the text
    # refused since 2.15: text   the same, from that torch on
    # refused before 2.14: text   the same, up to the torch before that
    # refused in 2.12: text       the same, with that torch alone
    # refused before 2.15 with Python before 3.13: text       the same, with an older Python alone
    # refused before 2.15 with Python since 3.12: text        the same, from that Python on
    # ends                  the refusal does: what the refused call leaves behind can be cached
    # needs torch 2.13      with an older torch the row can't be written, or is refused
    # args: ...             arguments of `f`, in Python; `tensor(3)` without it
    # then: ...             its arguments in the second process
    # arguments: ...        of `cache_compile`
    # before: MODEL         put that text of `row_source` before the source
    # edit FILE: old -> new (Python strings) an edit of a file for the second process

followed by the source of `main`, and that of other files after `#### file`. `main` defines what is
cached, `f`; or `make(cached) -> (call, ...)`. `run(call, ...)` calls it. Changes other than edits
are `change(call, ...)` and the context `around()` of the second call.

A row that says none of `hit`, `bypass` and `refused` must miss.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from row_source import HEAD, KEPT, MAKE, RUN, RUN_KEPT, TEXTS, THEN
from sampling import is_drawn


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
    refusal_ends: bool

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
    if category == _WRITES:
        main += "" if "def make(" in main else _filled(KEPT, options)
        main += "" if "def run(" in main else RUN_KEPT
    elif "def make(" not in main:
        main += _filled(MAKE, options)
        main += "".join(THEN.format(then=then) for then in options.get("then", ()))
    elif "def run(" not in main:
        main += RUN
    files = {"main": HEAD + main}
    for other in others:
        name, _, source = other.partition("\n")
        files[name.strip()] = HEAD + source.strip() + "\n"
    refused = _of_this_torch(options.get("refused", []))
    bypass = _of_this_torch(options.get("bypass", []))
    return Row(
        category=category,
        program=program.strip(),
        files=files,
        edits=[_edit(line) for line in options.get("edit", ())],
        says=_all_of_this_torch(options.get("says", [])) if refused is None else [],
        hit=_of_this_torch(options.get("hit", [])) is not None and refused is None,
        same_result="same" in options or "hit" in options,
        bypass=bypass is not None or refused is not None,
        refused=refused,
        refusal_ends="ends" in options,
    )


def _filled(text: str, options: dict[str, list[str]]) -> str:
    return text.format(
        args=options.get("args", ["tensor(3)"])[0].rstrip(","),
        arguments="".join(f", {each}" for each in options.get("arguments", ())),
    )


def _of_this_torch(texts: list[str]) -> str | None:
    """The text of an option, such as the reason of a refusal, if it concerns this torch."""
    return next(iter(_all_of_this_torch(texts)), None)


def _all_of_this_torch(texts: list[str]) -> list[str]:
    those = []
    for text in texts:
        limited = _LIMITED.fullmatch(text)
        if limited is None:
            those.append(text)
            continue
        version = tuple(map(int, limited.groups()[1:3]))
        concerns = {"since": version <= _TORCH, "before": version > _TORCH, "in": version == _TORCH}
        is_older = limited[5] is not None and sys.version_info[:2] < (3, int(limited[5]))
        if concerns[limited[1]] and limited[4] in (None, "before" if is_older else "since"):
            those.append(limited[6])
    return those


_LIMITED = re.compile(
    r"(since|before|in) (\d+)\.(\d+)(?: with Python (before|since) 3\.(\d+))? ?(.*)"
)
_WRITES = "writes"
_TORCH = tuple(map(int, metadata.version("torch").split(".")[:2]))


def _options(lines: list[str]) -> dict[str, list[str]]:
    lines = [line.removeprefix("# ") for line in lines]
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
            if _is_for_this_torch(text):
                rows[name] = parse(path.stem, text)
    return rows


def _is_for_this_torch(text: str) -> bool:
    needed = re.search(r"^# needs torch (\d+)\.(\d+)$", text, re.MULTILINE)
    return needed is None or tuple(map(int, needed.groups())) <= _TORCH


ROWS = _load("rows")
_WANTED = os.environ.get("NPUGX_TEST_ROWS", "")


def _chosen(rows: dict[str, Row]) -> dict[str, Row]:
    return {n: row for n, row in rows.items() if re.search(_WANTED, n) and is_drawn(n)}


CHOSEN = _chosen(ROWS)
"""The rows that run: those whose names match the regular expression in NPUGX_TEST_ROWS, or all.

Of these a sample, if NPUGX_TEST_SAMPLE asks for one."""
LONG = {"control_flow", "inner_tensors", "nested", "operators", "refused", "unguarded"}
"""The categories whose rows take the longest to compile: half of the time of all rows. They run
with the thorough tests only."""
LARGE = {"lookups", "modules", "source", "tensors", "values"}
"""The largest categories. With the quick tests runs every eighth row of these, every third of the
others."""


def _is_quick(row: Row) -> bool:
    if row.category in LONG:
        return False
    siblings = [each for each in ROWS.values() if each.category == row.category]
    return siblings.index(row) % (8 if row.category in LARGE else 3) == 0


QUICK = {name: row for name, row in CHOSEN.items() if _is_quick(row)}
ORDER = _load("order")
"""Rows about the order of sets. What changes is the hash seed of the process."""
WRITES = _chosen(_load(_WRITES))
"""Rows about what a function leaves behind, all of which is compared with eager's; chosen likewise.

Nothing changes. They are called three times with the same arguments; `# bypass`: one of the calls
can't be cached."""
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
