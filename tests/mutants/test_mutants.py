"""Which faults `python -m tests.mutants` makes, and that each part of the package has its tests."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import pytest

from tests.mutants.faults import KINDS, draw, faults_of
from tests.mutants.rooms import ROOMS, room_of
from tests.mutants.trial import Copy

REPOSITORY = Path(__file__).parents[2]


def changes(text):
    source = f"def f(a, b, c):\n    {text}\n".encode()
    faults = faults_of("m.py", source)
    for fault in faults:
        ast.parse(fault.of(source))
    prefix, suffix = b"def f(a, b, c):\n    ", b"\n"
    return {
        (each.kind, each.of(source).removeprefix(prefix).removesuffix(suffix).decode())
        for each in faults
    }


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("return a and b", {("term", "return (b)"), ("term", "return (a)")}),
        (
            "return a or (b and c)",
            {
                ("term", "return (b and c)"),
                ("term", "return (a)"),
                ("term", "return a or ((c))"),
                ("term", "return a or ((b))"),
            },
        ),
        ("return a is b", {("comparison", "return (a is not b)")}),
        ("return not a", {("comparison", "return (a)")}),
        ("return a < b", {("comparison", "return (a >= b)"), ("by one", "return (a <= b)")}),
        ("return a < b < c", set()),
        ("return a[1:]", {("by one", "return a[(2):]")}),
        ("return a - 1", {("by one", "return (a)"), ("by one", "return a - (2)")}),
        ("a(b)", {("call", "pass")}),
        ("with a:\n        return b", {("call", "if True:\n        return b")}),
        ("with a as b:\n        return b", set()),
        ("return a(b=True)", {("constant", "return a(b=(False))")}),
        ("return a in {'x', 'y'}", {
            ("comparison", "return (a not in {'x', 'y'})"),
            ("constant", "return a in ({'y'})"),
        }),
        ("return f'{a + 1}'", set()),
        ("assert a and b", set()),
        ("raise ValueError(1)", set()),
        ("'''Not 1.'''", set()),
    ],
)  # fmt: skip
def test_faults_are_single_and_of_each_kind(text, made):
    assert changes(text) == made


def test_places_are_right_behind_letters_of_several_bytes():
    assert changes("return 'äö' if a < b else '→'") == {
        ("comparison", "return 'äö' if (a >= b) else '→'"),
        ("by one", "return 'äö' if (a <= b) else '→'"),
    }


def test_what_runs_at_import_has_no_fault():
    assert faults_of("m.py", b"A = 1\nclass B:\n    c = 1 < 2\n    def f(self, d=1): pass\n") == []


def test_a_seed_draws_the_same_faults_and_the_kinds_in_turn():
    source = (REPOSITORY / "store" / "tiers.py").read_bytes()
    faults = faults_of("store/tiers.py", source)
    drawn = draw(faults, 1)
    assert drawn == draw(reversed(faults), 1) != draw(faults, 2)
    assert sorted(drawn) == sorted(faults)
    assert Counter(each.kind for each in drawn[: len(KINDS)]) == dict.fromkeys(KINDS, 1)


def test_of_two_faults_of_one_size_each_runs_itself(tmp_path, monkeypatch):
    """A test may start a process that writes bytecode, which a second tells from another."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    (tmp_path / "npugx_cache").mkdir()
    file = tmp_path / "npugx_cache/m.py"
    file.write_text("def f():\n    return 5 - 3\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    copy = Copy(tmp_path, tmp_path / "state")
    five, three = (
        next(each for each in faults_of("npugx_cache/m.py", file.read_bytes()) if each.before == n)
        for n in "53"
    )

    def answer():
        command = [sys.executable, "-c", "import m; print(m.f())"]
        folder = copy.tree / "npugx_cache"
        return int(subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout)

    answers = [answer()]
    for fault in (five, three):
        with copy._faulty(fault):
            answers.append(answer())
    assert answers == [2, 3, 1]
    assert answer() == 2


# --- every part of the package has a room


def sources():
    """The files of the package, under the names without links."""
    folders = (REPOSITORY / name for name in ("npugx_cache", "backend", "store"))
    files = (path for folder in folders for path in folder.rglob("*.py"))
    return sorted(str(path.relative_to(REPOSITORY)) for path in files)


def test_every_file_of_the_package_has_a_room():
    assert [path for path in sources() if room_of(path) is None] == []
    assert {room_of(path) for path in sources()} == set(ROOMS)


def table():
    """The rows of CONTRIBUTING.md that say which tests to run: two cells each."""
    lines = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    start = lines.index("| you change | run |") + 2
    end = next(at for at in range(start, len(lines)) if not lines[at].startswith("|"))
    return [line.strip("| ").split(" | ") for line in lines[start:end]]


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_a_row_in_contributing(room):
    sources, tests, thorough = ROOMS[room]
    names = {f"`{source}{end}`" for source in sources for end in ("", "/")}
    rows = [row for row in table() if any(name in row[0] for name in names)]
    assert rows, f"no row of CONTRIBUTING.md names {', '.join(sources)}"
    (row,) = rows
    assert all(f"`{name}`" in row[0] or f"`{name}/`" in row[0] for name in sources), row
    assert [name for name in tests if f"`{name}`" not in row[1]] == []
    assert [name for name in (*tests, *thorough) if not (REPOSITORY / name).exists()] == []


def test_every_folder_of_tests_is_in_contributing():
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = {path.parent.relative_to(REPOSITORY) for path in REPOSITORY.glob("tests/*/test_*.py")}
    assert [str(folder) for folder in sorted(folders) if f"{folder}" not in text] == []
