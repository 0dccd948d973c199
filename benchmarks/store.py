"""The store beside its peers, all in one run: rows A1-A6, C1, C6 and D1-D5 of what it has to reach.

Ratios to F, the same work in bare system calls in this process, are what counts. Nothing is
downloaded: peers that are not installed are taken from wheels in `--peers`, see `store_peers.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measuring import Numbers, markdown, rounded
from store_fleet import import_cost, single_flight, throughput
from store_floors import BlobAlone, EntryFloor, Floor, Ours
from store_many import at_the_limit, many
from store_peers import load

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 64 << 10
BLOBS = 400
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small and few, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as well")
    parser.add_argument("--place", default=tempfile.gettempdir(), help="a folder of the disk")
    parser.add_argument("--peers", type=Path, default=HERE / "peers", help="a folder of wheels")
    parser.add_argument("--entries", type=int, help="of the large store; 0 to leave it out")
    args = parser.parse_args()
    entries = (50 if args.quick else 100_000) if args.entries is None else args.entries
    with tempfile.TemporaryDirectory(dir=args.place) as name:
        os.environ["XDG_STATE_HOME"] = f"{name}/state"
        found = measure(Path(name), args.peers, entries, quick=args.quick)
    if args.json:
        args.json.write_text(json.dumps(rounded(found), indent=1) + "\n")
    print(text(found))


def measure(place: Path, wheels: Path, entries: int, *, quick: bool) -> Numbers:
    found: Numbers = {
        "get and put": get_and_put(place, wheels, 5 if quick else 200),
        "batch": batch(place, 2 if quick else 9),
        "import": import_cost(1 if quick else 12),
        "single flight": single_flight(place, 8 if quick else 64, 1 if quick else 5),
        "at the limit": at_the_limit(place, 20 if quick else 2000),
        "throughput": throughput(place, wheels, 0.1 if quick else 1.5),
    }
    if entries:
        found["entries"] = entries
        found["many"] = many(place, entries)
    return found


def get_and_put(place: Path, wheels: Path, rounds: int) -> Numbers:
    """Microseconds of 64 KiB, medians, by store."""
    peers, skipped = load(place, wheels)
    key_file = place / "key"
    key_file.write_text("5a" * 32)
    key_file.chmod(0o600)
    signed: dict[str, Any] = {"trust": "signed", "key_file": key_file}
    hasty: dict[str, Any] = {
        "F: one file": Floor(place / "floor"),
        "F: one file and sha256": Floor(place / "floor verified", verify=True),
        "F: the files of an entry": EntryFloor(place / "floor entry"),
        "ours": Ours(place / "ours"),
        "ours, signed": Ours(place / "signed", **signed),
        **peers,
    }
    durable: dict[str, Any] = {
        "F: one file, fsync": Floor(place / "floor sync", sync=True),
        "F: the files of an entry, fsync": EntryFloor(place / "floor entry sync", sync=True),
        "ours, durable": Ours(place / "durable", 60.0),
    }
    keys = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(rounds)]
    missing = [hashlib.sha256(b"no %d" % number).hexdigest() for number in range(rounds)]
    data = [os.urandom(SIZE) for _ in range(rounds)]

    def put(store: Any, at: int) -> None:
        store.put(keys[at], data[at])

    def get(store: Any, at: int) -> None:
        assert store.get(keys[at]) == data[at]

    found: Numbers = {"put": in_turn(hasty, put, rounds), "durable": in_turn(durable, put, rounds)}
    time.sleep(2.1)  # of younger files it is not remembered that they were verified
    found["get"] = in_turn(hasty, get, rounds)
    hasty["ours, the blob alone"] = BlobAlone(hasty["ours"], keys)
    found["get again"] = in_turn(hasty, get, rounds)
    del hasty["ours, the blob alone"]
    found["miss"] = in_turn(hasty, lambda store, at: store.get(missing[at]), rounds)
    return found | {"skipped": skipped}


def in_turn(
    stores: dict[str, Any], work: Callable[[Any, int], object], rounds: int
) -> dict[str, float]:
    """Every store in turn, in an order that changes: what one leaves to do hits all the same."""
    rng = random.Random(1)
    times: dict[str, list[float]] = {name: [] for name in stores}
    for at in range(rounds):
        for name in rng.sample(list(stores), len(stores)):
            started = time.perf_counter()
            work(stores[name], at)
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(row) * 1e6 for name, row in times.items()}


def batch(place: Path, rounds: int) -> dict[str, float]:
    """Microseconds for each blob of an entry of 400, durable; the floor is not synced at all."""
    floor = Floor(place / "floor batch")
    ours = Ours(place / "batch", 60.0)
    names = ("F: one file each, not synced", "ours, durable")
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        blobs = {f"b{at}": os.urandom(4096) for at in range(BLOBS)}
        started = time.perf_counter()
        for name, data in blobs.items():
            floor.put(f"{number}{name}", data)
        times[names[0]].append(time.perf_counter() - started)
        draft = ours.draft(f"{number:064x}", blobs)
        started = time.perf_counter()
        ours.store.publish(draft)
        times[names[1]].append(time.perf_counter() - started)
    return {name: statistics.median(row) / BLOBS * 1e6 for name, row in times.items()}


def text(found: Numbers) -> str:
    pairs = found["get and put"]
    parts = [
        table("A1 get, 64 KiB", "us", pairs["get"], "F: one file and sha256"),
        table("A2 get again, the same process", "us", pairs["get again"], "F: one file"),
        table("A3 miss", "us", pairs["miss"], "F: one file"),
        table("A4 put, 64 KiB, not synced", "us", pairs["put"], "F: one file"),
        table("A4 put, 64 KiB, durable", "us", pairs["durable"], "F: one file, fsync"),
        table("A5 a blob of 400, durable", "us", found["batch"], "F: one file each, not synced"),
        table("A6 import, CPU over bare", "ms", found["import"]),
        flight(found["single flight"]),
        table("C6 two processes, 80 % get, 20 % put", "per s", found["throughput"]),
    ]
    parts.append(table("D4 a publish to a store at its limit, wall", "ms", found["at the limit"]))
    if "many" in found:
        title = f"D1-D5 a store of {found['entries']} entries, CPU"
        parts.append(table(title, "ms", found["many"]))
    parts += [f"Not measured: {name}: {why}" for name, why in pairs["skipped"].items()]
    return "\n\n".join(parts)


def table(title: str, unit: str, row: dict[str, float], floor: str | None = None) -> str:
    if floor is None:
        return markdown([title, unit], [[name, f"{number:.1f}"] for name, number in row.items()])
    rows = [[name, f"{number:.1f}", f"{number / row[floor]:.2f}"] for name, number in row.items()]
    return markdown([title, unit, f"/ {floor}"], rows)


def flight(found: dict[str, dict[str, float]]) -> str:
    columns = list(next(iter(found.values())))
    rows = [[kind, *(f"{row[name]:.0f}" for name in columns)] for kind, row in found.items()]
    return markdown(["C1 single flight", *columns], rows)


if __name__ == "__main__":
    main()
