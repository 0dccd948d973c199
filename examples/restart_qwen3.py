"""Generate text with a stock Qwen3 in three processes: eager, cold, restarted. Compare them."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from typing import Any

MODES = ("eager", "cold", "restarted")
COLUMNS = ("first_s", "tokens_per_s", "same_tokens", "entries", "traced")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--tokens", type=int, default=24, help="how many each loop generates")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "both"], default="both")
    parser.add_argument("--cache-dir", help="keep the entries here; else in a temporary folder")
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.mode:
        from generation_loops import measure_loops

        print(json.dumps(measure_loops(args)))
        return 0
    print("dtype     loop         process    " + "  ".join(COLUMNS))
    dtypes = ["float32", "bfloat16"] if args.dtype == "both" else [args.dtype]
    eager: dict[str, list[int]] = {}
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        for mode in MODES:
            for row in run(mode, dtypes, args.cache_dir or temporary):
                expected = eager.setdefault(f"{row['dtype']} {row['loop']}", row["tokens"])
                row["same_tokens"] = "yes" if row["tokens"] == expected else "NO"
                good &= row["tokens"] == expected and (mode == "cold" or not row["traced"])
                cells = (str(row[name]).rjust(len(name)) for name in COLUMNS)
                print(f"{row['dtype']:<8}  {row['loop']:<11}  {mode:<9}  {'  '.join(cells)}")
    print("restarted: same tokens as eager, nothing traced" if good else "FAILED")
    return 0 if good else 1


def run(mode: str, dtypes: list[str], cache_dir: str) -> list[dict[str, Any]]:
    """Start one process per dtype, side by side, and collect what they measured."""
    command = [sys.executable, *sys.argv, "--mode", mode, "--cache-dir", cache_dir, "--dtype"]
    children = [
        subprocess.Popen([*command, dtype], stdout=subprocess.PIPE, text=True) for dtype in dtypes
    ]
    outputs = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit(f"{mode}: a process failed")
    return [row for output in outputs for row in json.loads(output)]


if __name__ == "__main__":
    sys.exit(main())
