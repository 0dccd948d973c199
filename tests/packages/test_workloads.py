"""Workloads of other packages: cold, restarted and against eager; docs/models.md says what came."""

from __future__ import annotations

import importlib.util
import os
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("packages_page", HERE / "page.py")
page = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(page)
zoo = page.zoo

ALL_ARE_HERE = os.environ.get("NPUGX_TEST_PACKAGES") == "all"
ROWS = [pytest.param(p, name, id=f"{p.name}, {name}") for p, name in zoo.rows()]
SERVED = [row for row in ROWS if (row.values[0].name, row.values[1]) not in zoo.REFUSED]
REFUSED = [row for row in ROWS if row not in SERVED]
A_PACKAGE = pytest.mark.timeout(3600)  # the first test of a package runs its four processes


def installed(package):
    try:
        return version(package.name)
    except PackageNotFoundError:
        return None


@pytest.fixture
def runs(once):
    def of(package):
        here, pinned = installed(package), page.versions()[package.name]
        if here != pinned:
            problem = f"needs {package.name} {pinned}, found {here}: bash tests/packages/run"
            assert not ALL_ARE_HERE, problem
            pytest.skip(problem)

        def make(surroundings):
            def start(*arguments, **environment):
                return surroundings.start(*arguments, **environment).result(850)

            return page.phases(package, surroundings.folder, start)

        return once(f"package-{package.name}", make)

    return of


@A_PACKAGE
@pytest.mark.parametrize(("package", "name"), ROWS)
def test_a_workload_gives_eagers_results_cold_and_restarted(runs, package, name):
    found = runs(package)
    for phase in ("eager", "cold", "restarted"):
        assert "error" not in found[phase][name], found[phase][name]["error"]
    cold, restarted = found["cold"][name], found["restarted"][name]
    of_torch = (package.name, name) in zoo.UNLIKE_EAGER
    for run in (cold, restarted):
        assert run["difference from torch" if of_torch else "difference"] is None
        assert not of_torch or run["difference"], "like eager now: take it out of UNLIKE_EAGER"
    assert restarted["digest"] == cold["digest"], "restarted and cold differ in a bit"


@A_PACKAGE
@pytest.mark.parametrize(("package", "name"), SERVED)
def test_a_restarted_workload_hits_from_its_first_call_on(runs, package, name):
    found = runs(package)
    cold, restarted = found["cold"][name], found["restarted"][name]
    assert cold["bypasses"] == 0, cold["warnings"]
    assert cold["frames"] > 0, "nothing was traced cold: the counter is dead"
    said = [restarted["reasons"], restarted["warnings"]]
    assert (restarted["misses"], restarted["bypasses"]) == (0, 0), said
    assert restarted["hits"] > 0
    assert (restarted["frames"], restarted["loaded"]) == (0, [])
    assert restarted["missed again"] == 0, restarted["reasons"]
    assert cold["warnings"] == restarted["warnings"]
    said = zoo.WARNED.get((package.name, name))
    assert [said in each for each in cold["warnings"]] == ([] if said is None else [True])


@A_PACKAGE
@pytest.mark.parametrize(("package", "name"), REFUSED)
def test_a_refused_workload_is_still_refused_and_says_why(runs, package, name):
    found = runs(package)
    cold, restarted = found["cold"][name], found["restarted"][name]
    assert page.result(cold, restarted) in ("refused", "traced again"), (
        "not refused now: take the row out of REFUSED in tests/packages/packages_zoo.py, "
        f"and run: python tests/packages/page.py {package.name}"
    )
    words = zoo.REFUSED[package.name, name].words
    for run in (cold, restarted) if cold["bypasses"] else (restarted,):
        assert words in "\n".join([*run["warnings"], *run["reasons"]])


@A_PACKAGE
@pytest.mark.parametrize(("package", "name"), REFUSED)
def test_torch_runs_a_refused_workload_unless_the_table_says_otherwise(runs, package, name):
    of_torch, words = runs(package)["torch"][name], zoo.REFUSED[package.name, name].torch
    if words:
        assert words in of_torch.get("error", "torch runs it")
    else:
        assert of_torch == {"difference": None}


@A_PACKAGE
@pytest.mark.parametrize(("package", "name"), ROWS)
def test_the_table_says_what_the_run_gives(runs, package, name):
    found = runs(package)
    shown = page.cells_of(page.section(page.PAGE.read_text()))[package.name, name]
    made = page.cells(found["cold"][name], found["restarted"][name])
    assert shown == made, f"run: python tests/packages/page.py {package.name}"


def test_the_section_is_made_from_the_table_of_workloads():
    text = page.section(page.PAGE.read_text())
    shown = page.cells_of(text)
    assert set(shown) == {(package.name, name) for package, name in zoo.rows()}
    assert text == page.render(shown)


def test_every_package_is_pinned_and_every_function_is_a_workload():
    assert {package.name for package in zoo.PACKAGES} <= set(page.versions())
    for package in zoo.PACKAGES:
        source = (HERE / "workloads" / f"{package.file}.py").read_text()
        functions = set(re.findall(r"^def (\w+)\(cache\):", source, re.MULTILINE))
        assert functions == set(package.workloads)
    assert {(package.name, name) for package, name in zoo.rows()} >= set(zoo.REFUSED) | set(
        zoo.UNLIKE_EAGER
    )
