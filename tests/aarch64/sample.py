"""Print a regular expression for NPUGX_TEST_ROWS: COUNT rows of each category.

python sample.py COUNT SEED

All rows would take hours in emulation. The seed chooses them, so that each night tries others. Of
the rows of a category one must hit, one must miss and one is refused, if there are such.
"""

from __future__ import annotations

import random
import re
import sys
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "soundness"))

from matrix import ROWS, WRITES


def main(count: int, seed: int) -> None:
    chance, chosen = random.Random(seed), []
    rows = {**{name: row.category for name, row in ROWS.items()}, **dict.fromkeys(WRITES, "writes")}
    for _, names in groupby(rows, rows.get):
        shuffled = chance.sample(each := list(names), len(each))
        earlier: dict[str, int] = {}
        for name in shuffled:  # the first that must hit, the first that must miss, ...
            earlier[name] = sum(_kind(other) == _kind(name) for other in earlier)
        chosen += sorted(shuffled, key=earlier.__getitem__)[:count]
    print(f"^({'|'.join(map(re.escape, chosen))})$")


def _kind(name: str) -> str:
    return {**WRITES, **ROWS}[name].expectation


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
