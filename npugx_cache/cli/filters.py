"""`--filter`: which entries a command is about."""

from __future__ import annotations

import fnmatch
import operator
import re
import time
from typing import TYPE_CHECKING

import click

from npugx_cache.cli.opening import duration, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npugx_cache.store import Listed

_EXPRESSION = re.compile(r"\s*([a-z]+)\s*(>=|<=|!=|=|>|<)\s*(.+?)\s*")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
}
_NUMBERS: dict[str, tuple[Callable[[str], float], Callable[[Listed], float]]] = {
    "size": (size, lambda item: item.stored_bytes),
    "hits": (float, lambda item: item.hits),
    "cost": (duration, lambda item: item.manifest.cost_seconds),
    "used": (duration, lambda item: time.time() - item.last_used),
    "created": (duration, lambda item: time.time() - item.manifest.created),
}
_TEXTS: dict[str, Callable[[Listed], object]] = {
    "kind": lambda item: item.manifest.kind,
    "entry": lambda item: item.manifest.entry,
    "key": lambda item: item.manifest.key,
    "function": lambda item: item.manifest.about.get("function"),
    "environment": lambda item: item.manifest.about.get("environment"),
}


def parse(text: str) -> Callable[[Listed], bool]:
    """The test that one `--filter` stands for."""
    match = _EXPRESSION.fullmatch(text)
    name = match[1] if match else ""
    if match is None or name not in {*_NUMBERS, *_TEXTS}:
        known = ", ".join([*_NUMBERS, *_TEXTS])
        raise click.BadParameter(f"{text!r} is no NAME OPERATOR VALUE; names are {known}")
    if name in _NUMBERS:
        return _number(name, match[2], match[3])
    if match[2] not in {"=", "!="}:
        raise click.BadParameter(f"{text!r}: {name} is text and can only be compared with = or !=")
    return _text(name, match[3], wanted=match[2] == "=")


def _number(name: str, comparison: str, value: str) -> Callable[[Listed], bool]:
    convert, of = _NUMBERS[name]
    try:
        number = convert(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a number") from None
    compare = _COMPARE[comparison]
    return lambda item: compare(of(item), number)


def _text(name: str, pattern: str, *, wanted: bool) -> Callable[[Listed], bool]:
    of = _TEXTS[name]
    if name in {"entry", "key"}:
        pattern += "*"  # an id may be shortened everywhere
    return lambda item: fnmatch.fnmatchcase(str(of(item) or ""), pattern) is wanted


def all_hold(filters: Iterable[Callable[[Listed], bool]], item: Listed) -> bool:
    return all(holds(item) for holds in filters)
