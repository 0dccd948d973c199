"""A model as serving engines run it, cut at attention: entries, bytes, cold and restarted.

`tests/pieces/run_engine.py` is the engine: Dynamo traces Qwen3 once, with one dynamic size, and
each piece between two attentions is compiled for a range of sizes by `NpugxCompiler`. "In our
compiler" is the time for all pieces, Dynamo's trace and the cut not included. Every figure is of
fresh processes, on one thread.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from measuring import Numbers, fresh, machine, markdown, medians, run_script

ENGINE = Path(__file__).parents[1] / "tests" / "pieces" / "run_engine.py"
LAYERS, RUNS = 28, 3
COLUMNS = (
    "figure",
    "pieces",
    "entries",
    "compiled, found",
    "in our compiler, CPU s",
    "first call, CPU s",
    "on disk, kB",
    "to eager",
)


def measure(quick: bool) -> Numbers:
    layers, runs = (2, 1) if quick else (LAYERS, RUNS)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        handles = folder / "handles.txt"
        settings = {
            "NPUGX_CACHE_DIR": str(folder / "cache"),
            "XDG_STATE_HOME": str(folder / "state"),
        }

        def run() -> Numbers:
            found = fresh(ENGINE, handles, layers, "--sizes=[(1, 8192)]", **settings)
            files = (path for path in (folder / "cache").rglob("*") if path.is_file())
            return found | {"disk_bytes": sum(path.stat().st_size for path in files)}

        found = {"cold": run()}
        found["restarted, with handles"] = medians([run() for _ in range(runs)])
        without = []
        for _ in range(runs):
            handles.unlink()
            without.append(run())
        found["restarted, without handles"] = medians(without)
    return {"machine": machine(), "layers": layers, "figures": found}


def text(found: Numbers) -> str:
    rows = [
        [
            title,
            str(run["pieces"]),
            str(run["entries"]),
            f"{run['info'][1]}, {run['info'][0]}",
            f"{run['compiler_cpu']:.3f}",
            f"{run['first_cpu']:.2f}",
            f"{run['disk_bytes'] / 1e3:.0f}",
            "equal" if not run["difference"] else f"{run['difference']:.1e}",
        ]
        for title, run in found["figures"].items()
    ]
    return f"{found['layers']} layers\n\n{markdown(COLUMNS, rows)}"


if __name__ == "__main__":
    run_script(__doc__, measure, text)
