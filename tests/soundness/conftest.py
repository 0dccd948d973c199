"""The matrix is run once, for all tests that look at it: in short, and, thoroughly, as a whole."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from matrix import CHOSEN, QUICK
from processes import run, write

NAMES = list(CHOSEN)


@pytest.fixture(scope="session")
def asked(once, only_quick):
    """Every row, or every quick one if nothing thorough runs.

    `cold` compiles a row, and the `changed` row is asked for where nothing may compile. Whether a
    changed row is a hit, and why it is none, is known before anything is compiled.
    """
    rows = QUICK if only_quick else CHOSEN
    names = list(rows)

    def make(surroundings):
        unchanged, changed = surroundings.folder / "tree", surroundings.folder / "changed"
        write(unchanged, rows, changed=False)
        write(changed, rows, changed=True)
        return {
            "folder": str(surroundings.folder),
            "cold": run(surroundings, unchanged, "cold", names, NPUGX_TEST_WATCH="1"),
            "changed": run(surroundings, changed, "warm", names, NPUGX_CACHE_RECOMPILE_LIMIT="0"),
        }

    return once("matrix", make)


@pytest.fixture(scope="session")
def runs(once, asked):
    """The other phases: what changed is compiled as well, also between two calls of a process."""

    def make(surroundings):
        fleet = type(surroundings)(Path(asked["folder"]))
        tree, moved = fleet.folder / "tree", fleet.folder / "moved" / "deep"
        # The store must not know the changed rows yet when the unchanged ones come back.
        moved.parent.mkdir()
        shutil.copytree(tree, moved, copy_function=shutil.copyfile)  # with other times
        elsewhere = fleet.folder / "elsewhere"
        elsewhere.mkdir()
        again = run(
            fleet,
            moved,
            "cold",
            NAMES[::-1],
            cwd=elsewhere,
            HOME=str(elsewhere),
            PYTHONHASHSEED="77",
            OMP_NUM_THREADS="2",
            RANK="3",
            LOCAL_RANK="3",
            MASTER_PORT="29501",
        )
        live_names = [name for name, row in CHOSEN.items() if row.can_happen_live]
        live = run(fleet.beside("live"), tree, "live", live_names)
        write(tree, CHOSEN, changed=True)  # edited where they lay
        warm = run(fleet, tree, "warm", NAMES)
        return {"cold": asked["cold"], "again": again, "live": live, "warm": warm}

    return once("whole matrix", make)
