"""Results of a run of the zoo as docs/models.md, and the page's cells as values.

Run the whole zoo and write the page: python tests/models/page.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "models.md"
sys.path.insert(0, str(HERE))
import zoo  # noqa: E402

WAYS = zoo.ALL
OTHERS = "## Other packages\n"  # from here on the page is made by tests/packages/page.py
HEAD = """\
# Models

Stock architectures of transformers 5.23, built small from their configs with random weights, and
plain torch modules, on a CPU. Every row ran eagerly, then with `cache_compile(model)` in a process
that filled the store, then in a restarted one.

"cached" says that all three gave the same results (the restarted process and the one that
compiled to the last bit), and that the restarted process answered every call from the store: 0
frames traced, no compiler loaded, no warning. The results are the logits of each step, the greedy
tokens, and what the key-value cache holds afterwards. `-`: the model has no such call, or the zoo
no such row (half precision has fewer).

- forward: one call without a cache. masked: the same with an attention mask that hides padding.
- static cache, dynamic cache: 6 tokens and 3 steps more with `StaticCache`, with `DynamicCache`.
- own cache: one call that says nothing of a cache, so that the model makes one.
- generate: `model.generate()` for 8 tokens, with padding.

"""
TAIL = """\
Made by `python tests/models/page.py`, which runs the whole zoo. Every test run has each
model in some rows (`often` in `tests/models/zoo.py`) and compares this page with them;
`NPUGX_TEST_ZOO=all pytest -m "" tests/models`, meant for the night, does that for all rows.
"""


def cell(cold: dict[str, Any], warm: dict[str, Any]) -> str:
    """What the page says of a row that ran cold and restarted."""
    if "error" in warm or "error" in cold or warm["difference"] or warm["digest"] != cold["digest"]:
        return "**wrong**"
    if warm["bypasses"]:
        return "refused"
    if warm["misses"] or warm["frames"] or warm["loaded"]:
        return "**traced again**"
    return "cached"


def render(cells: dict[str, str]) -> str:
    lines = [f"| model | dtype | {' | '.join(WAYS)} |", "|---|---|" + "---|" * len(WAYS)]
    for model in zoo.TRANSFORMERS + zoo.PLAIN:
        for dtype, ways in model.ways.items():
            rows = {way: str(zoo.Row(model, dtype, way)) for way in ways}
            shown = " | ".join(cells[rows[way]] if way in rows else "-" for way in WAYS)
            lines.append(f"| {model.name} | {dtype} | {shown} |")
    refused = [f"- {name}: {each.explanation}." for name, each in zoo.REFUSED.items()]
    refused = ["", "Refused, with the reason in the log; such a model runs eagerly:", "", *refused]
    return HEAD + "\n".join([*lines, *refused, "", TAIL])


def own_part(page: str) -> str:
    return page.partition(f"\n{OTHERS}")[0]


def cells_of(page: str) -> dict[str, str]:
    """The inverse of `render`, for every row the page has a line for."""
    found = {}
    for line in page.splitlines():
        if line.startswith("| ") and not line.startswith("| model "):
            name, dtype, *shown = (part.strip() for part in line.strip("|").split(" | "))
            found |= {
                f"{name}, {dtype}, {way}": each for way, each in zip(WAYS, shown, strict=True)
            }
    return {row: each for row, each in found.items() if each != "-"}


def run_all(store: str) -> dict[str, Any]:
    """What `run.py` says of all rows: a process for each group, side by side."""
    environment = {**os.environ, "NPUGX_CACHE_DIR": store, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(HERE / "run.py"), str(group), "all"],
            env=environment,
            stdout=subprocess.PIPE,
        )
        for group in range(len(zoo.GROUPS))
    ]
    found: dict[str, Any] = {}
    for process in started:
        out, _ = process.communicate()
        found |= json.loads(out.splitlines()[-1])
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as store:
        cold, warm = run_all(store), run_all(store)
    others = PAGE.read_text().removeprefix(own_part(PAGE.read_text()))
    PAGE.write_text(render({row: cell(cold[row], warm[row]) for row in cold}) + others)
    for row in cold:
        if cell(cold[row], warm[row]) != "cached":
            print(row, json.dumps([cold[row], warm[row]], indent=2))


if __name__ == "__main__":
    main()
