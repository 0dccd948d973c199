"""The option `--filter`: selects the entries that a command works on."""

from __future__ import annotations

import fnmatch
import operator
import re
import time
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import click

from npugx_cache.cli.links import links
from npugx_cache.cli.opening import duration, size
from npugx_cache.store.upkeep.usage import Use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from npugx_cache.store import FolderStore, Manifest
    from npugx_cache.store.upkeep.index import Overview, Row


class Considered:
    """One entry that filters look at. `functions` are its own name, and those it is a piece of."""

    def __init__(self, row: Row, use: Use, store: FolderStore, of: Sequence[str] = ()) -> None:
        self.row, self.use, self._store = row, use, store
        self.functions = (row.function, *of)

    @cached_property
    def manifest(self) -> Manifest | None:
        """The whole manifest, which the index does not hold; None if it can't be read just now."""
        from npugx_cache.store import Miss
        from npugx_cache.store.content.publish import stored_manifest

        found = stored_manifest(self._store.folder, self.row.key, self.row.entry)
        return None if isinstance(found, Miss) else found[0]


Test: TypeAlias = "Callable[[Considered], bool]"

_EXPRESSION = re.compile(r"\s*([a-z]+)\s*(>=|<=|!=|=|>|<)\s*(.+?)\s*", re.DOTALL)
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
_TEXTS = {
    "kind": "kind",
    "entry": "entry",
    "key": "key",
    "function": "function",
    "input": "signature",
    "reason": "reason",
    "environment": "environment",
}
"""Filters on a text of the index, with the name of the text."""
_OF_MANIFEST = ("backend", "dynamic", "option")
_LONG = frozenset({"input", "reason", "environment"})
"""Texts of which nobody types the whole: a pattern may match any part."""


def parse(text: str) -> Test:
    """The test that the text of one `--filter` describes; raises click.BadParameter."""
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise click.BadParameter(
            f"{text!r} is not NAME OPERATOR VALUE, such as 'size>1M' or 'kind=graph'; "
            f"names are {_filter_names()}"
        )
    name, comparison, value = match.groups()
    if name in _NUMBERS:
        return _number(name, comparison, value)
    if name not in {*_TEXTS, *_OF_MANIFEST}:
        raise click.BadParameter(
            f"{text!r}: there is no filter {name!r}; names are {_filter_names()}"
        )
    if comparison not in {"=", "!="}:
        raise click.BadParameter(f"{text!r}: {name} is text and can only be compared with = or !=")
    wanted = comparison == "="
    if name in _OF_MANIFEST:
        return _of_manifest(name, value, wanted=wanted)
    return _text(name, value, wanted=wanted)


def _filter_names() -> str:
    return ", ".join([*_NUMBERS, *sorted((*_TEXTS, *_OF_MANIFEST))])


def _number(name: str, comparison: str, value: str) -> Test:
    convert, of = _NUMBERS[name]
    try:
        number = convert(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a number") from None
    compare = _COMPARE[comparison]
    return lambda item: compare(of(item.row, item.use), number)


def _text(name: str, pattern: str, *, wanted: bool) -> Test:
    if name in {"entry", "key"}:
        pattern += "*"  # every command accepts a shortened id
    if name == "input":
        pattern = pattern.replace("[", "[[]")  # `float32[4, 5]` is a size, not a set of characters
    if name in _LONG:
        pattern = f"*{pattern}*"
    if name == "function":
        return lambda item: any(names_function(pattern, each) for each in item.functions) is wanted
    attribute = _TEXTS[name]
    return lambda item: fnmatch.fnmatchcase(getattr(item.row, attribute), pattern) is wanted


def names_function(pattern: str, function: str) -> bool:
    """Whether a pattern matches a dotted name, or as many of its last parts as the pattern has."""
    last = ".".join(function.split(".")[-1 - pattern.count(".") :])
    return any(fnmatch.fnmatchcase(name, pattern) for name in (function, last))


def _of_manifest(name: str, pattern: str, *, wanted: bool) -> Test:
    """A test of what only the manifest tells. An entry without a manifest passes no such test."""

    def test(item: Considered) -> bool:
        manifest = item.manifest
        if manifest is None:
            return False
        found = any(fnmatch.fnmatchcase(text, pattern) for text in _values(name, manifest))
        return found is wanted

    return test


def _values(name: str, manifest: Manifest) -> Iterable[str]:
    """What an entry has under the name of a filter; each option is one text, `name=value`."""
    if name == "backend":
        return [str(manifest.about.get("backend", ""))]
    if name == "dynamic":
        return [value for factor, value, _ in manifest.factors if factor == "dynamic"]
    prefix = "option."
    rows = [(factor, value) for factor, value, _ in manifest.factors if factor.startswith(prefix)]
    return [f"{factor.removeprefix(prefix)}={value}" for factor, value in rows]


def select_entries(
    store: FolderStore | None,
    overview: Overview,
    uses: Mapping[str, Use],
    tests: Sequence[Test],
) -> Sequence[int]:
    """The positions in `overview` of the entries that pass all tests."""
    if store is None or not tests:
        return range(overview.columns.count)
    none, functions = Use(), links(store, overview.columns).functions
    return [
        at
        for at, row in enumerate(overview.columns.rows())
        if _passes(
            Considered(row, uses.get(row.entry, none), store, functions.get(row.entry, ())), tests
        )
    ]


def _passes(item: Considered, tests: Sequence[Test]) -> bool:
    return all(test(item) for test in tests)
