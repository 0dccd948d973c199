"""The matrix is run once, for all tests that look at it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from matrix import ROWS
from processes import run, write


@pytest.fixture(scope="session")
def runs(once):
    def make(surroundings):
        tree, moved = surroundings.folder / "tree", surroundings.folder / "moved" / "deep"
        names = list(ROWS)
        write(tree, ROWS, changed=False)
        cold = run(surroundings, tree, "cold", names, NPUGX_TEST_WATCH="1")
        # The store must not know the changed rows yet when the unchanged ones come back.
        moved.parent.mkdir()
        shutil.copytree(tree, moved, copy_function=shutil.copyfile)  # with other times
        elsewhere = surroundings.folder / "elsewhere"
        elsewhere.mkdir()
        again = run(
            surroundings,
            moved,
            "cold",
            names[::-1],
            cwd=elsewhere,
            HOME=str(elsewhere),
            PYTHONHASHSEED="77",
            OMP_NUM_THREADS="2",
            RANK="3",
            LOCAL_RANK="3",
            MASTER_PORT="29501",
        )
        live_names = [name for name, row in ROWS.items() if row.can_happen_live]
        live = run(surroundings.beside("live"), tree, "live", live_names)
        write(tree, ROWS, changed=True)
        warm = run(surroundings, tree, "warm", names)
        return {"cold": cold, "again": again, "live": live, "warm": warm}

    return once("matrix", make)
