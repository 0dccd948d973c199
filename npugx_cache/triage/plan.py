"""What one stage of a triage is to do: the command line writes a plan, a fresh process reads it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pathlib import Path

Way = Literal[
    "eager", "eager again", "dynamo", "aot_eager", "traced", "passes", "cold", "restored", "bisect"
]
CACHED: tuple[Way, ...] = ("traced", "passes", "cold", "restored")
"""The ways that run the program through the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One stage.

    target: `module:callable`, or the path of a script, which ends in `.py`.
    inputs: `module:name` or a `.pt` file; None for a call without arguments.
    scratch: a folder for stores and results, which is removed when the triage ends.
    events: the file to which the stage appends a line of JSON for all that happens.
    folder: the folder to attach to an issue.
    at_fault: for the way "bisect", the number of the call that differs.
    """

    way: Way
    target: str
    arguments: tuple[str, ...]
    inputs: str | None
    calls: int
    seed: int
    scratch: str
    events: str
    folder: str
    save_inputs: bool
    at_fault: int = 0

    @property
    def is_script(self) -> bool:
        return is_script(self.target)

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> Plan:
        data: dict[str, Any] = json.loads(file.read_text())
        return cls(**{**data, "arguments": tuple(data["arguments"])})


def is_script(target: str) -> bool:
    return target.endswith(".py")
