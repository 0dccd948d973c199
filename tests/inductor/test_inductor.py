"""The backend inductor: a restart needs no compiler, of C++ or of Python, and is right (P1, P3)."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NO_COMPILER = shutil.which("g++") is None
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(NO_COMPILER, reason="a cold compile of Inductor's takes a C++ compiler"),
]
HERE = Path(__file__).parent
RUN = HERE.parent / "restart" / "run.py"
LINES = (HERE / "programs.py").read_text().splitlines()
PROGRAMS = [
    line.removeprefix("def ").partition("(")[0]
    for mark, line in itertools.pairwise(LINES)
    if mark == "@program"
]
REFUSED = "complex_numbers"
WITHOUT_ITS_OWN = {"views_alone", REFUSED}
ONE = "nothing_is_returned"


def run(surroundings, *names, **environment):
    """Run programs where there is no C++ compiler, unless `environment` says otherwise."""
    nothing = surroundings.folder / "nothing"
    nothing.mkdir(exist_ok=True)
    environment = {"PATH": str(nothing), "CXX": None, **environment}
    wanted = [f"programs:{name}" for name in names] or ["programs"]
    rows = surroundings.run(RUN, HERE, *wanted, NPUGX_TEST_BACKEND="inductor", **environment)
    return {name.removeprefix("programs:"): row for name, row in rows.items()}


@pytest.fixture(scope="session")
def runs(once):
    """All programs, cold and restarted."""

    def make(surroundings):
        cold = run(surroundings, PATH=os.environ["PATH"])
        return {"cold": cold, "warm": run(surroundings), "store": str(surroundings.store)}

    return once("inductor", make)


@pytest.fixture
def restarted(runs, surroundings):
    """Surroundings with the store of the cold run, and no C++ compiler."""
    shutil.copytree(runs["store"], surroundings.store)
    return surroundings


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != REFUSED])
def test_a_cold_run_is_right_and_a_restart_hits_without_any_compiler(runs, name):
    cold, warm = runs["cold"][name], runs["warm"][name]
    assert cold["difference"] is None
    assert (cold["bypasses"], cold["misses"]) == (0, 1), cold["warnings"]
    assert warm["difference"] is None
    assert (warm["hits"], warm["misses"], warm["bypasses"]) == (1, 0, 0), warm["reasons"]
    assert warm["digest"] == cold["digest"], "restored and cold differ in a bit"
    assert warm["loaded"] == []


def test_what_a_library_can_not_do_alone_is_refused_and_right(runs):
    for phase, reason in (("cold", "no C function"), ("warm", "can't compile it")):
        row = runs[phase][REFUSED]
        assert row["difference"] is None
        assert (row["hits"], row["misses"], row["bypasses"]) == (0, 0, 1)
        assert reason in row["warnings"][0]


def test_what_overlaps_is_run_call_by_call_and_said_once(runs):
    for phase in ("cold", "warm"):
        rows = [row for name, row in runs[phase].items() if name != REFUSED]
        assert [line for row in rows for line in row["warnings"]] == [
            "inputs that a compiled graph writes to overlap others: it runs call by call"
        ]


def _libraries(store: Path) -> list[Path]:
    return [blob for blob in store.glob("v1/cas/*/*") if blob.stat().st_size > 50_000]


def test_every_graph_that_computes_has_a_library_of_its_own(runs):
    assert len(_libraries(Path(runs["store"]))) == len(PROGRAMS) - len(WITHOUT_ITS_OWN)


def test_a_changed_library_is_not_loaded_but_put_aside(restarted):
    for library in _libraries(restarted.store):
        data = bytearray(library.read_bytes())
        data[len(data) // 2] ^= 1
        library.chmod(0o600)
        library.write_bytes(data)
    row = run(restarted, ONE)[ONE]
    assert row["difference"] is None
    assert row["hits"] == 0
    assert any("digest" in line or "not used" in line for line in row["warnings"])
    assert any(path.is_file() for path in (restarted.store / "v1" / "quarantine").rglob("*"))


def test_a_store_of_a_group_is_refused_and_the_call_is_right(restarted):
    row = run(restarted, ONE, NPUGX_CACHE_TRUST="group")[ONE]
    assert row["difference"] is None
    assert row["hits"] == 0
    assert any("machine code" in line and "group" in line for line in row["warnings"])


def test_without_a_compiler_what_is_not_stored_runs_and_says_why(surroundings):
    row = run(surroundings, ONE)[ONE]
    assert row["difference"] is None
    assert (row["hits"], row["misses"], row["bypasses"]) == (0, 0, 1)
    assert any("Inductor can't compile it" in line for line in row["warnings"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"OMP_NUM_THREADS": "2"}, "threads"),
        ({"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}, "TORCHINDUCTOR_MAX_AUTOTUNE"),
    ],
)
def test_what_a_library_was_compiled_for_is_a_condition(restarted, change, reason):
    row = run(restarted, ONE, **change)[ONE]
    assert row["difference"] is None
    assert row["hits"] == 0
    assert any(reason in line for line in row["reasons"])


def test_an_exported_library_is_imported_and_runs(restarted):
    other, file = restarted.beside("other"), restarted.folder / "graphs.tar"
    for where, command in ((restarted, "export"), (other, "import")):
        subprocess.run(
            [sys.executable, "-m", "npugx_cache.cli", command, file],
            env=where.environment(),
            check=True,
            timeout=60,
        )
    assert run(other, ONE)[ONE]["hits"] == 1
