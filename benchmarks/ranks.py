"""Four ranks on one store: how often they compile, and what a restart costs each of them.

`examples/torchrun_tp.py`, data-parallel: all ranks have one graph. The last column compares the
slowest rank's first call with that of one process that restores the same graph alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import Numbers, environment, markdown, medians, run_script

EXAMPLE = Path(__file__).parents[1] / "examples/torchrun_tp.py"
WORLD = 4
COLUMNS = (
    "processes",
    "compiles",
    "hits",
    "first call, CPU s, slowest rank",
    "first call, wall s, slowest rank",
    "CPU / one process's restore",
)


def measure(quick: bool) -> Numbers:
    with tempfile.TemporaryDirectory() as folder:
        settings = {"NPUGX_CACHE_DIR": f"{folder}/cache", "XDG_STATE_HOME": folder}
        cold = torchrun(WORLD, settings)
        alone, together = [], []
        for _ in range(1 if quick else 5):
            alone.append(torchrun(1, settings))
            together.append(torchrun(WORLD, settings))
    return {"cold": cold, "alone": medians(alone), "restarted": medians(together)}


def torchrun(world: int, settings: dict[str, str]) -> Numbers:
    run = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)
    lo = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    command = [sys.executable, *run, str(EXAMPLE), "data"]
    made = environment(**settings, **lo)
    child = subprocess.run(command, env=made, check=True, stdout=subprocess.PIPE, text=True)
    infos = re.findall(r"hits=(\d+), misses=(\d+)", child.stdout)
    times = re.findall(r"first call: ([\d.]+) s, CPU ([\d.]+) s", child.stdout)
    if not len(infos) == len(times) == world:
        raise SystemExit(child.stdout)
    return {
        "hits": sum(int(hits) for hits, _ in infos),
        "misses": sum(int(misses) for _, misses in infos),
        "wall": max(float(wall) for wall, _ in times),
        "cpu": max(float(cpu) for _, cpu in times),
    }


def text(found: Numbers) -> str:
    names = {
        "cold": f"{WORLD} ranks, empty store",
        "alone": "one, restarted",
        "restarted": f"{WORLD} ranks, restarted",
    }
    rows = []
    for way, name in names.items():
        row = found[way]
        ratio = row["cpu"] / found["alone"]["cpu"]
        times = (f"{row[each]:.3f}" for each in ("cpu", "wall"))
        counts = (f"{row[each]:.0f}" for each in ("misses", "hits"))
        rows.append([name, *counts, *times, f"{ratio:.2f}"])
    return markdown(COLUMNS, rows)


if __name__ == "__main__":
    run_script(__doc__, measure, text)
