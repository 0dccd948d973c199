"""Appends what happens to a file, so that it is known after a crash."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class Events:
    """A file with one JSON object in each line."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", encoding="utf-8")

    def write(self, event: str, **about: Any) -> None:
        self._file.write(json.dumps({"event": event, **about}) + "\n")
        self._file.flush()


def read(file: Path) -> list[dict[str, Any]]:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1]  # the last line may have been cut by a crash
    return [json.loads(line) for line in whole.splitlines()]
