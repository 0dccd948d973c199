"""The option `--filter`: selects the entries that a command works on."""

from __future__ import annotations

import fnmatch
import operator
import re
import time
from typing import TYPE_CHECKING, TypeAlias

import click

from npugx_cache.cli.opening import duration, size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npugx_cache.store.upkeep.index import Row
    from npugx_cache.store.upkeep.usage import Use

_EXPRESSION = re.compile(r"\s*([a-z]+)\s*(>=|<=|!=|=|>|<)\s*(.+?)\s*")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
}
_NUMBERS: dict[str, tuple[Callable[[str], float], Callable[[Row, Use], float]]] = {
    "size": (size, lambda row, _: row.stored_bytes),
    "hits": (float, lambda _, use: use.hits),
    "cost": (duration, lambda row, _: row.cost_seconds),
    "used": (duration, lambda row, use: time.time() - max(row.mtime, use.last_used)),
    "created": (duration, lambda row, _: time.time() - row.created),
}
_TEXTS = frozenset({"kind", "entry", "key", "function", "environment"})


Test: TypeAlias = "Callable[[Row, Use], bool]"


def parse(text: str) -> Test:
    """The test that the text of one `--filter` describes; raises click.BadParameter."""
    match = _EXPRESSION.fullmatch(text)
    name = match[1] if match else ""
    if match is None or name not in {*_NUMBERS, *_TEXTS}:
        known = ", ".join([*_NUMBERS, *sorted(_TEXTS)])
        raise click.BadParameter(f"{text!r} is not NAME OPERATOR VALUE; names are {known}")
    if name in _NUMBERS:
        return _number(name, match[2], match[3])
    if match[2] not in {"=", "!="}:
        raise click.BadParameter(f"{text!r}: {name} is text and can only be compared with = or !=")
    return _text(name, match[3], wanted=match[2] == "=")


def _number(name: str, comparison: str, value: str) -> Test:
    convert, of = _NUMBERS[name]
    try:
        number = convert(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a number") from None
    compare = _COMPARE[comparison]
    return lambda row, use: compare(of(row, use), number)


def _text(name: str, pattern: str, *, wanted: bool) -> Test:
    if name in {"entry", "key"}:
        pattern += "*"  # every command accepts a shortened id
    return lambda row, _: fnmatch.fnmatchcase(getattr(row, name), pattern) is wanted


def all_pass(tests: Sequence[Test], row: Row, use: Use) -> bool:
    return all(test(row, use) for test in tests)
