"""Finds the entries that a user names: by id, by the first digits of an id, or by function."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from npugx_cache.cli import output
from npugx_cache.cli.opening import WrongInput
from npugx_cache.store.content.entries import MIN_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npugx_cache.store.upkeep.index import Overview

_DIGITS = frozenset("0123456789abcdef")
_SHOWN = 16
_NAMED = 8


def entries_named(names: Iterable[str], overview: Overview) -> list[str]:
    """The ids that these names mean, each once; raises WrongInput if one of them means not one."""
    known = sorted(overview.columns.texts("entry"))
    unreadable = {bad.entry: bad.reason for bad in overview.refused if bad.entry}
    return list(dict.fromkeys(_entry_named(name, known, unreadable) for name in names))


def entry_meant(name: str, overview: Overview) -> str:
    """The id of the only entry with this id, prefix of an id, or name of a function.

    The name of a function may be the last parts of the dotted name. Raises WrongInput.
    """
    entries = overview.columns.texts("entry")
    functions = overview.columns.texts("function")
    found = [
        entry
        for entry, function in zip(entries, functions, strict=True)
        if f".{function}".endswith(f".{name}")
    ]
    is_id = len(name) >= MIN_PREFIX and set(name.lower()) <= _DIGITS
    if is_id and (not found or any(entry.startswith(name.lower()) for entry in entries)):
        return entries_named([name], overview)[0]
    if len(found) == 1:
        return found[0]
    shown = output.in_line(name)
    if found:
        named = ", ".join(entry[:_SHOWN] for entry in found[:_NAMED])
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise WrongInput(
            f"{len(found)} entries are of {shown}: {named}{more}. Name one by its id; "
            f"`npugx-cache ls --filter 'function={shown}'` shows them"
        )
    raise WrongInput(
        f"{shown} is neither an entry nor a function in the cache. "
        "`npugx-cache ls` shows what there is"
    )


def _entry_named(name: str, known: list[str], unreadable: dict[str, str]) -> str:
    wanted = name.lower()
    shown = output.in_line(name)
    if len(wanted) < MIN_PREFIX or not set(wanted) <= _DIGITS:
        raise WrongInput(f"{shown!r} is not an entry id: give {MIN_PREFIX} or more hex digits")
    first = bisect_left(known, wanted)
    matches = known[first : bisect_left(known, f"{wanted}g")]
    if len(matches) == 1:
        return matches[0]
    if matches:
        named = ", ".join(entry[:_SHOWN] for entry in matches[:_NAMED])
        more = f" and {len(matches) - _NAMED} more" if len(matches) > _NAMED else ""
        raise WrongInput(f"{wanted} is ambiguous: {named}{more}. Give more digits")
    for entry, reason in unreadable.items():
        if entry.startswith(wanted):
            raise WrongInput(
                f"{wanted} can't be read: {output.in_line(reason)}. "
                "`npugx-cache verify --repair` moves damaged entries to quarantine"
            )
    raise WrongInput(f"no entry starts with {wanted}. `npugx-cache ls` shows what there is")
