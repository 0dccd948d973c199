"""Generate text with a stock Qwen3 in three processes: eager, cold, restarted. Compare them."""

import argparse
import json
import subprocess
import sys
import tempfile
from typing import Any

MODES = ("eager", "cold", "restarted")
COLUMNS = ("first_s", "steady_ms", "eager_ms", "same_tokens", "entries", "traced")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--tokens", type=int, default=24, help="how many each loop generates, >= 4")
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
    good, runs = True, dict[str, dict[str, dict[str, Any]]]()
    with tempfile.TemporaryDirectory() as temporary:
        for mode in MODES:
            for row in run(mode, dtypes, args.cache_dir or temporary):
                name = f"{row['dtype']:<8}  {row['loop']:<11}"
                runs.setdefault(name, {})[mode] = row
                same = row["tokens"] == runs[name]["eager"]["tokens"]
                good &= same and (mode == "cold" or not row["traced"])
                row["same_tokens"] = "yes" if same else "NO"
                cells = "  ".join(str(row[each]).rjust(len(each)) for each in COLUMNS)
                print(f"{name}  {mode:<9}  {cells}")
    print("first_s: first token; steady_ms: median after the third; eager_ms: the same, uncached")
    for name, loop in runs.items():
        after, instead = loop["restarted"]["first_s"], loop["cold"]["first_s"]
        print(f"saved at a restart: {name}  first token after {after} s instead of {instead} s")
    print("restarted: same tokens as eager, nothing traced" if good else "FAILED")
    return 0 if good else 1


def run(mode: str, dtypes: list[str], cache_dir: str) -> list[dict[str, Any]]:
    """Start one process per dtype, side by side, and collect what they measured."""
    command = [sys.executable, *sys.argv, "--mode", mode, "--cache-dir", cache_dir, "--dtype"]
    children = [subprocess.Popen([*command, d], stdout=subprocess.PIPE, text=True) for d in dtypes]
    outputs = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit(f"{mode}: a process failed")
    return [row for output in outputs for row in json.loads(output)]


if __name__ == "__main__":
    sys.exit(main())
