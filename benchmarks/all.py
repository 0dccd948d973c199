"""Run all benchmarks: the tables of README.md, the plot, and one small file in history/.

About an hour on two quiet cores. `--quick` runs all in small, prints the tables and writes
nothing: to see that everything still runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import Numbers, environment, machine, rounded

HERE = Path(__file__).parent
README, HISTORY, PLOTS = HERE / "README.md", HERE / "history", HERE / "plots"


BENCHMARKS = (
    "restart",
    "until_steady",
    "floors",
    "restored",
    "refused",
    "overhead",
    "execution",
    "vendor",
    "cold",
    "inductor",
    "pieces",
    "split_layers",
    "scale",
    "store",
    "ranks",
    "serving",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS)
    args = parser.parse_args()
    chosen = [each for each in BENCHMARKS if not args.only or each in args.only]
    started = time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime())
    found: Numbers = {"machine": machine(), "figures": {}, "seconds": {}}
    for each in chosen:
        clock = time.monotonic()
        numbers, text = run(each, args.quick)
        found["figures"][each] = numbers
        found["seconds"][each] = time.monotonic() - clock
        print(f"\n## {each}\n\n{text}", flush=True)
        if not args.quick:
            into_readme(each, f"{started[:10]}, {machine()}\n\n{text}")
    draw(found["figures"], args.quick)
    if not args.quick:
        HISTORY.mkdir(exist_ok=True)
        (HISTORY / f"{started}.json").write_text(json.dumps(rounded(found)) + "\n")


def run(name: str, quick: bool) -> tuple[Numbers, str]:
    """The numbers of one benchmark and the text it prints."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "numbers.json"
        script = str(HERE / f"{name}.py")
        command = [sys.executable, script, "--json", str(file), *(["--quick"] if quick else [])]
        child = subprocess.run(
            command, env=environment(), check=False, stdout=subprocess.PIPE, text=True
        )
        if child.returncode:
            raise SystemExit(f"{name} failed")
        numbers: Numbers = json.loads(file.read_text())
    return numbers, child.stdout.strip()


def into_readme(name: str, text: str) -> None:
    """Put the text between the two markers of that name."""
    whole = README.read_text()
    begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    before, found, rest = whole.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{README} has no place for {name}: {begin.strip()} ... {end.strip()}")
    README.write_text(f"{before}{begin}{text}{end}{after}")


def draw(figures: Numbers, quick: bool) -> None:
    import scale
    import until_steady

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) if quick else PLOTS
        for each in (scale, until_steady):
            if each.__name__ in figures:
                each.plot(figures[each.__name__], place / f"{each.__name__}.svg")


if __name__ == "__main__":
    main()
