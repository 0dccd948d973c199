"""Each program of the pages runs twice, in processes of its own, and prints what the page says.

A program is a Python block that is not marked as a fragment. The blocks of text below it are what
the first run prints and what the second one does; ids, times and the last digits of numbers may
differ.
"""

import math
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from pages import FRAGMENT, PAGES, ROOT, programs

PROGRAMS = [program for page in PAGES for program in programs(page) if program.mark != FRAGMENT]
QUICK = ("README.md",)
"""One program is run in the quick tests; the others, and so the examples, are thorough."""
_NUMBER = re.compile(r"-?\d+\.\d+")
_VARYING = [(r"\b[0-9a-f]{12}\b", "ENTRY"), (r"\b[\d.]+ (s|ms)\b", r"TIME \1")]


def run(surroundings, script):
    worker = surroundings.start(script, HF_HUB_OFFLINE="1")
    printed, said = worker.process.communicate(timeout=300)
    assert worker.process.returncode == 0, said
    assert "runs uncached" not in said
    return printed


def same(printed, expected):
    """Whether two texts are equal but for what differs between machines."""
    for pattern, word in _VARYING:
        printed, expected = (re.sub(pattern, word, text) for text in (printed, expected))
    if _NUMBER.sub("NUMBER", printed) != _NUMBER.sub("NUMBER", expected):
        return False
    numbers = zip(_NUMBER.findall(printed), _NUMBER.findall(expected), strict=True)
    return all(math.isclose(float(a), float(b), abs_tol=2e-3) for a, b in numbers)


def marks(program):
    return () if program.page in QUICK else (pytest.mark.thorough,)


@pytest.mark.parametrize(
    "program",
    [pytest.param(each, id=f"{each.page}:{each.line}", marks=marks(each)) for each in PROGRAMS],
)
def test_a_program_prints_what_the_page_says(surroundings, program):
    script = surroundings.folder / "program.py"
    script.write_text(program.text)
    assert len(program.printed) in (0, 2)
    runs = [run(surroundings, script) for _ in range(2)]
    for printed, expected in zip(runs, program.printed, strict=False):
        assert same(printed, expected), printed


def test_a_text_that_differs_in_more_than_ids_times_and_last_digits_is_another():
    shown = "result: tensor(2.5355)\n0876d83dc5da: used, took 10.40 s\n"
    assert same("result: tensor(2.5354)\nffffffffffff: used, took 0.1 s\n", shown)
    assert not same("result: tensor(2.6)\n0876d83dc5da: used, took 10.40 s\n", shown)
    assert not same("result: tensor(2.5355)\n0876d83dc5da: not used, took 10.40 s\n", shown)


@pytest.mark.thorough
def test_the_edit_of_the_five_minute_start_is_the_miss_that_it_shows(surroundings):
    page = (ROOT / "docs/start.md").read_text()
    edited = re.search(r"Change `(.+)` to `(.+)` and run", page)
    shown = re.search(r"### See a miss.*?```text\n(.+?)```", page, re.DOTALL)[1]
    script = surroundings.folder / "function.py"
    script.write_text((ROOT / "examples/function.py").read_text())
    run(surroundings, script)
    assert edited[1] in script.read_text()
    script.write_text(script.read_text().replace(edited[1], edited[2]))
    assert same(run(surroundings, script).splitlines(keepends=True)[-1], shown)
