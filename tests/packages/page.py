"""Results of the zoo of packages as a section of docs/models.md, and the table's cells as values.

Run the workloads of all packages, or of some, and write the section:
python tests/packages/page.py [PACKAGE ...]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import packages_zoo as zoo  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "models.md"
REQUIREMENTS = HERE / "requirements.txt"
TITLE = "## Other packages\n"
# The process that restarts walks sets of strings in another order than the one that compiled.
HASH_SEEDS = {"eager": "1", "torch": "1", "cold": "1", "restarted": "3"}
HEAD = """
Small models of other packages with random weights, used as people use them.
There are several calls, shapes, loops of schedulers, `generate`, adapters that are switched.
Each workload ran eagerly, cold and restarted, in processes of their own.
These walk sets of strings in different orders.

- hit: the store answered every call of the restarted process, the first one too.
  No frame was traced, no compiler loaded, no warning logged.
  The process that compiled and the restarted one gave the same results to the last bit.
  Both are those of eager within the tolerance of the dtype.
- hit, unlike eager: the results are those of `torch.compile(fullgraph=True, backend="aot_eager")`.
- refused: a call ran uncached, with eager's results.
- traced again: stored, but a process with another order of sets misses, with eager's results.
  Each order has an entry of its own, and later processes with a stored order hit.
- refused, torch too: `torch.compile(fullgraph=True, backend="aot_eager")` raises there.
- entries: what the process that compiled stored.

"""
TAIL = """\
Made by `python tests/packages/page.py`, with the versions in `tests/packages/requirements.txt`.
`bash tests/packages/run`, meant for the night, installs these versions and runs all workloads.
Then it compares this table with what came of them.
The thorough tests do the same for the packages that are there in the right version.
"""


def versions() -> dict[str, str]:
    """What the table was made with: the packages that requirements.txt pins."""
    return dict(re.findall(r"^([\w-]+)==([\w.*]+)", REQUIREMENTS.read_text(), re.MULTILINE))


def result(cold: dict[str, Any], restarted: dict[str, Any]) -> str:
    """What the table says of a workload that ran cold and restarted, without the reason."""
    runs = (cold, restarted)
    if any("error" in run for run in runs):
        return "**raises**"
    # What differs from eager must be what torch gives: run only for what the zoo says this of.
    unlike = any(run["difference"] and run["difference from torch"] for run in runs)
    if unlike or cold["digest"] != restarted["digest"]:
        return "**wrong**"
    if any(run["bypasses"] for run in runs):
        return "refused"
    if restarted["misses"] or restarted["frames"] or restarted["loaded"]:
        return "traced again"
    # The process that compiled may meet what the first calls left behind for the first time.
    return "**never settles**" if restarted["missed again"] else "hit"


def cells(cold: dict[str, Any], restarted: dict[str, Any]) -> tuple[str, str]:
    """Entries and result."""
    return str(cold.get("stored", 0)), result(cold, restarted)


def render(shown: dict[tuple[str, str], tuple[str, str]]) -> str:
    lines = ["| package | version | workload | entries | result |", "|---|---|---|---|---|"]
    of = versions()
    for package, name in zoo.rows():
        entries, found = shown[package.name, name]
        refusal = zoo.REFUSED.get((package.name, name))
        if refusal:
            found += f"{', torch too' if refusal.torch else ''}: {refusal.explanation}"
        elif (package.name, name) in zoo.UNLIKE_EAGER:
            found += f", unlike eager: {zoo.UNLIKE_EAGER[package.name, name]}"
        given = [package.name, of[package.name], package.workloads[name], entries, found]
        lines.append(f"| {' | '.join(given)} |")
    return TITLE + HEAD + "\n".join([*lines, "", TAIL])


def section(page: str) -> str:
    """What this script writes; the rest of the page is by tests/models/page.py."""
    return page[page.index(TITLE) :] if TITLE in page else ""


def cells_of(text: str) -> dict[tuple[str, str], tuple[str, str]]:
    """The inverse of `render`, for every workload that the table has a line for."""
    names = {
        (package.name, package.workloads[name]): (package.name, name)
        for package, name in zoo.rows()
    }
    found = {}
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| package "):
            package, _, workload, entries, shown = line.strip("| ").split(" | ")
            key = names.get((package, workload))
            if key:
                found[key] = entries, re.split(", torch too|, unlike eager|: ", shown)[0]
    return found


def phases(
    package: zoo.Package, folder: Path, start: Callable[..., dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """What `run.py` says of a package's workloads, by phase: one process after the other.

    `start(*arguments, **environment)` runs a process of Python and gives what that printed.
    """
    asked = [
        name
        for name in package.workloads
        if (package.name, name) in zoo.REFUSED or (package.name, name) in zoo.UNLIKE_EAGER
    ]
    found = {}
    for phase, seed in HASH_SEEDS.items():
        environment = {
            "PYTHONHASHSEED": seed,
            "HF_HUB_OFFLINE": "1",
            "YOLO_OFFLINE": "1",
            "YOLO_CONFIG_DIR": str(folder),
        }
        wanted = asked if phase == "torch" else list(package.workloads)
        given = [HERE / "run.py", phase, folder, package.name, *wanted]
        found[phase] = start(*given, **environment) if wanted else {}
    return found


def run(package: zoo.Package, folder: Path) -> dict[str, dict[str, Any]]:
    def start(*arguments: object, **environment: str) -> dict[str, Any]:
        environment |= {"OMP_NUM_THREADS": "1", "NPUGX_CACHE_DIR": str(folder / "cache")}
        command = [sys.executable, *map(str, arguments)]
        out = subprocess.run(
            command, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True
        ).stdout
        made: dict[str, Any] = json.loads(out.splitlines()[-1])
        return made

    return phases(package, folder, start)


def main(*wanted: str) -> None:
    page = PAGE.read_text()
    rest = page.removesuffix(section(page)).rstrip("\n")
    shown = cells_of(section(page))
    for package in zoo.PACKAGES:
        if wanted and package.name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            runs = run(package, Path(folder))
        for name in package.workloads:
            cold, restarted = runs["cold"][name], runs["restarted"][name]
            made = cells(cold, restarted)
            shown[package.name, name] = made
            print(package.name, name, *made, flush=True)
            if made[1] != "hit" and (package.name, name) not in zoo.REFUSED:
                print(json.dumps([cold, restarted], indent=2))
    PAGE.write_text(f"{rest}\n\n{render(shown)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
