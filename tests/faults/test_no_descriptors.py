"""A call of a process that can open no file gives the function's result, and passes (P2)."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import npugx_cache

SCRIPT = Path(__file__).with_name("no_descriptors.py")
sys.path.insert(0, str(SCRIPT.parent))
from no_descriptors import SCENARIOS  # noqa: E402

PACKAGE = Path(npugx_cache.__file__).parent
ASIDE = ("cli", "triage", "warming")
"""What runs in processes of its own, in no call of a user."""
HITS = {"first", "warm", "plan", "spans"}
"""The scenarios whose function has one graph, which is restored after the shortage."""


@pytest.mark.thorough
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_calls_give_the_results_of_the_function(surroundings, scenario):
    cold = surroundings.run(SCRIPT, scenario)
    assert all(cold["right"]), cold
    warm = surroundings.run(SCRIPT, scenario)
    assert all(warm["right"]), warm
    if scenario in HITS:
        assert warm["counts"][:2] == [1, 0]
        assert warm["counts"][2] > 0
        assert "used, because its conditions hold" in warm["explained"]


def handlers(path):
    """The statements that run when something has failed."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Try):
            yield from node.finalbody
            for handler in node.handlers:
                yield from handler.body


def test_no_handler_of_a_fault_imports_anything():
    """An import that fails in a handler would be raised in the place of the fault."""
    linked = (PACKAGE, PACKAGE / "store", PACKAGE / "backend")
    found = [
        f"{path.relative_to(PACKAGE)}:{each.lineno}"
        for path in sorted({path for folder in linked for path in folder.rglob("*.py")})
        if path.relative_to(PACKAGE).parts[0] not in ASIDE
        for statement in handlers(path)
        for each in ast.walk(statement)
        if isinstance(each, (ast.Import, ast.ImportFrom))
    ]
    assert found == []


def test_what_judges_a_fault_is_loaded_by_a_decoration(surroundings):
    code = """if True:
        import json, sys
        from npugx_cache import cache_compile
        cache_compile(lambda x: x)
        print(json.dumps(sorted(sys.modules)))
    """
    loaded = surroundings.run("-c", code)
    judges = {"interpreter.interruptions", "passing", "entry.failed_run", "private.schemas"}
    assert {f"npugx_cache.{name}" for name in judges} <= set(loaded)
