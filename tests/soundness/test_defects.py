"""The vendor's defects have rows, and those rows fail where the protection is switched off."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from defects import DEFECTS, PROTECTIONS
from matrix import ROWS
from processes import RUN, write

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_has_rows_that_exist(defect):
    for name in DEFECTS[defect]:
        assert name in ROWS or (REPOSITORY / name).exists(), name
    assert re.match(r"D\d+ ", defect)


@pytest.fixture(scope="module")
def unprotected(once):
    def make(surroundings):
        tree = surroundings.folder / "tree"
        rows = {name: ROWS[name] for name, _ in PROTECTIONS.values()}
        write(tree, rows, changed=False)
        surroundings.run(RUN, tree, "cold", *rows)
        write(tree, rows, changed=True)
        return surroundings.run(RUN, tree, "unprotected", *PROTECTIONS, NPUGX_CACHE="readonly")

    return once("unprotected", make)


@pytest.mark.thorough
@pytest.mark.parametrize("protection", PROTECTIONS)
def test_without_its_protection_a_row_gives_the_wrong_result(unprotected, protection):
    row = unprotected[protection]
    assert row["hits"] == 1
    assert row["difference"] is not None
    assert row["difference"].startswith("eager ")
