"""Which tests look at which part of the package.

`CONTRIBUTING.md` has a row for each room, which `test_mutants` compares with this list. There the
row may name more tests: here are those that are quick, and tell of a fault by themselves. Where
nearly all tests are thorough, those run too that take seconds.
"""

from __future__ import annotations

from typing import NamedTuple

PACKAGE = "npugx_cache"


class Room(NamedTuple):
    sources: tuple[str, ...]
    """Folders and files of the package. A file belongs to the room with the longest name of it."""
    tests: tuple[str, ...]
    """Folders and files of tests; what is `thorough` in them is left out."""
    thorough: tuple[str, ...] = ()
    """Files of which the `thorough` tests run, too."""


def _room(sources: str, *tests: str, thorough: str = "") -> Room:
    return Room(tuple(sources.split()), tests, tuple(thorough.split()))


ROOMS = {
    "call": _room(
        "api arguments binding specialisations answer store_client compile capture_plan",
        "tests/unit",
        "tests/concurrency",
        "tests/footguns",
    ),
    "key": _room("key", "tests/key", "tests/unit"),
    "conditions": _room("conditions", "tests/guards", "tests/unit"),
    "trace": _room("trace", "tests/unit", "tests/footguns", "tests/guards"),
    "entry": _room(
        "entry",
        "tests/unit",
        "tests/faults",
        "tests/cli/test_readable.py",
        "tests/cli/test_diff.py",
    ),
    "values": _room("portable private records", "tests/unit", "tests/key", "tests/guards"),
    "backend": _room(
        "backend",
        "tests/backend",
        "tests/unit/test_folded_graphs.py",
        "tests/unit/test_program.py",
        "tests/unit/test_options_and_config.py",
        "tests/capture",
    ),
    "capture": _room("backend/capture", "tests/capture"),
    "inductor": _room("backend/inductor backend/engines/inductor", "tests/inductor"),
    "store": _room("store", "tests/store", "tests/faults"),
    "pieces": _room(
        "pieces",
        "tests/pieces",
        thorough="tests/pieces/test_breaks.py tests/pieces/test_holding.py "
        "tests/pieces/test_loaded.py",
    ),
    "integrations": _room("integrations", "tests/pieces/test_engines.py"),
    "cli": _room("cli", "tests/cli"),
    "triage": _room("triage", "tests/triage", "tests/cli/test_triage.py"),
    "warming": _room("warming", "tests/warm"),
    "frozen": _room("__pyinstaller", "tests/packaging"),
    "counters": _room("counters events", "tests/metrics", "tests/unit"),
    "settings": _room(
        "__init__ __main__ config errors interpreter location passing terminal version",
        "tests/unit",
        "tests/cli/test_settings.py",
    ),
}


def room_of(path: str) -> str | None:
    """The room of a file of the package; None if no row of the table names the file."""
    name = path.removesuffix(".py").removeprefix(f"{PACKAGE}/")
    rooms = {source: room for room, row in ROOMS.items() for source in row.sources}
    fitting = [source for source in rooms if name == source or name.startswith(f"{source}/")]
    return rooms[max(fitting, key=len)] if fitting else None
