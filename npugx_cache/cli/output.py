"""Formats text for people: sizes and times, without characters that steer a terminal."""

from __future__ import annotations

import sys
import time

import click

from npugx_cache.terminal import harmless


def in_line(text: str) -> str:
    return harmless(" ".join(text.split()), kept="")


def in_lines(cells: list[str]) -> list[str]:
    """`in_line` of every cell. Fast path: one test of all cells together, if none needs it."""
    text = "\n".join(cells)
    odd = "  " in text or " \n" in text or "\n " in text or text != text.strip()
    if not odd and text.replace("\n", "").isprintable() and text.count("\n") == len(cells) - 1:
        return cells
    return [in_line(cell) for cell in cells]


def size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def count(number: float, one: str, many: str) -> str:
    return f"{number:.0f} {one if number == 1 else many}"


def seconds(number: float) -> str:
    if number < 120:
        return f"{number:.1f} s"
    return f"{number / 60:.1f} min" if number < 7200 else f"{number / 3600:.1f} h"


def moment(stamp: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(stamp))
    except (ValueError, OverflowError, OSError):
        return "?"


def on_terminal() -> bool:
    return sys.stdout.isatty()


def print_json(value: object, *, err: bool = False) -> None:
    import json

    # ASCII escapes make control characters harmless as well.
    click.echo(json.dumps(value, indent=2), err=err)
