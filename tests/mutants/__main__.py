"""Put single faults into a copy of the tree, and list those that no test notices.

    python -m tests.mutants --sample 150 --seed 1

What was tried is kept in the state folder; the same command goes on where another was stopped.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.mutants.faults import Fault, draw, faults_of
from tests.mutants.rooms import ROOMS, room_of
from tests.mutants.trial import Copy, Verdict

CHECKOUT = Path(__file__).parents[2]
DEFAULT_ROOMS = "backend,store,key,entry,cli,pieces"


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; the same command goes on"))
    wanted = _arguments()
    if wanted.fresh:
        shutil.rmtree(wanted.state, ignore_errors=True)
    copy = Copy(CHECKOUT, wanted.state)
    rooms = wanted.rooms.split(",")
    random.Random(wanted.seed).shuffle(rooms)
    tried: list[dict[str, Any]] = []
    for number, room in enumerate(rooms):
        share = (wanted.sample * (number + 1)) // len(rooms) - wanted.sample * number // len(rooms)
        tried += _try_room(copy, room, share, wanted)
    dead = sum(one["result"] in {"killed", "hung"} for one in tried)
    judged = dead + sum(one["result"] == "survived" for one in tried)
    print(_as_json(wanted, tried) if wanted.format == "json" else _as_table(wanted, tried))
    if judged and 100 * dead < wanted.at_least * judged:
        sys.exit(f"{dead} of {judged} faults were noticed, fewer than {wanted.at_least} %")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=150, help="how many faults (150)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the faults")
    parser.add_argument("--rooms", default=DEFAULT_ROOMS, help=f"of {', '.join(ROOMS)}")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin none after that")
    parser.add_argument("--at-least", type=int, default=0, help="percent that tests must notice")
    parser.add_argument("--state", type=Path, default=CHECKOUT / "build" / "mutants")
    parser.add_argument("--fresh", action="store_true", help="copy the tree anew, forget results")
    wanted = parser.parse_args()
    wanted.until = time.monotonic() + 60 * wanted.minutes
    return wanted


def _try_room(
    copy: Copy, room: str, share: int, wanted: argparse.Namespace
) -> list[dict[str, Any]]:
    if time.monotonic() > wanted.until:
        return []
    _say(f"{room}: which lines do {', '.join(ROOMS[room].tests)} run?")
    tests = copy.map_of(ROOMS[room])
    sources = [path for path in copy.sources() if room_of(path) == room]
    faults = [
        fault for path in sources for fault in faults_of(path, (copy.tree / path).read_bytes())
    ]
    log = copy.state / "results.jsonl"
    known = (
        {one["name"]: one for one in map(json.loads, log.read_text().splitlines())}
        if log.exists()
        else {}
    )
    tried: list[dict[str, Any]] = []
    for fault in draw(faults, wanted.seed):
        if len(tried) == share or time.monotonic() > wanted.until:
            break
        chosen = tests.tests(fault)
        if not chosen:
            continue  # no quick test runs the line
        one = known.get(fault.name())
        if one is None:
            verdict = copy.judge(fault, chosen, tests.marks, sum(map(tests.cost, chosen)))
            one = _record(room, fault, verdict)
            with log.open("a") as file:
                file.write(json.dumps(one) + "\n")
        tried.append(one)
        _say(f"{room} {len(tried)}/{share}: {one['result']} in {one['seconds']} s, {_shown(one)}")
    return tried


def _record(room: str, fault: Fault, verdict: Verdict) -> dict[str, Any]:
    return {"name": fault.name(), "room": room, **fault._asdict(), **verdict._asdict()}


def _shown(one: dict[str, Any]) -> str:
    by = f" by {one['by']}" if one["by"] else ""
    return f"{one['path']}:{one['line']} ({one['kind']}) {_change(one)}{by}"


def _change(one: dict[str, Any]) -> str:
    before, after = (" ".join(one[name].split()) for name in ("before", "after"))
    return f"`{before}` -> `{after}`"


def _as_table(wanted: argparse.Namespace, tried: list[dict[str, Any]]) -> str:
    lines = [
        f"Seed {wanted.seed}: {_counts(tried)}",
        "",
        "| room | faults | noticed |",
        "|---|---|---|",
    ]
    for room in sorted({one["room"] for one in tried}):
        of_room = [one for one in tried if one["room"] == room]
        dead = sum(one["result"] in {"killed", "hung"} for one in of_room)
        lines.append(f"| {room} | {len(of_room)} | {dead} |")
    lines += ["", "| survived | kind | change | tests that ran |", "|---|---|---|---|"]
    for one in tried:
        if one["result"] == "survived":
            before, after = (" ".join(one[name].split()) for name in ("before", "after"))
            change = f"`{before}` -> `{after}`".replace("|", "\\|")
            lines.append(
                f"| {one['path']}:{one['line']} | {one['kind']} | {change} | {one['tests']} |"
            )
    return "\n".join(lines)


def _counts(tried: list[dict[str, Any]]) -> str:
    counts = Counter(one["result"] for one in tried)
    return f"{len(tried)} faults: " + ", ".join(f"{n} {name}" for name, n in counts.most_common())


def _as_json(wanted: argparse.Namespace, tried: list[dict[str, Any]]) -> str:
    survivors = [one for one in tried if one["result"] == "survived"]
    counts = Counter(one["result"] for one in tried)
    return json.dumps(
        {"seed": wanted.seed, "tried": len(tried), "counts": counts, "survivors": survivors},
        indent=2,
    )


def _say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
