"""Folds texts that differ in the number of a sibling only: `layers[0].mlp`, `layers[1].mlp`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_INDEX = re.compile(r"\[(0|[1-9][0-9]*)\]")


class Template(NamedTuple):
    """`text` is an expression that gives the texts if the variable counts from `first` on.

    `plain` is the same with the variable in the place of the number, for comments.
    """

    text: str
    plain: str
    first: int


def template(texts: Sequence[str], variable: str) -> Template | None:
    """What texts have in common that differ in `[number]` only, where the numbers count up."""
    pieces = [_INDEX.split(text) for text in texts]
    if len({tuple(each[::2]) for each in pieces}) != 1:
        return None
    columns = list(zip(*(each[1::2] for each in pieces), strict=True))
    varied = [column for column in columns if len(set(column)) > 1]
    if not varied or len(set(varied)) != 1:
        return None
    first = int(varied[0][0])
    if list(varied[0]) != [str(first + place) for place in range(len(texts))]:
        return None
    fixed, numbers = pieces[0][::2], [column[0] for column in columns]
    marks = [len(set(column)) > 1 for column in columns]

    def join_parts(opened: str, closed: str) -> str:
        text = fixed[0]
        for number, mark, rest in zip(numbers, marks, fixed[1:], strict=True):
            text += f"[{opened}{variable}{closed}]{rest}" if mark else f"[{number}]{rest}"
        return text

    plain = join_parts("", "")
    if "\\" in texts[0]:
        return None  # a quote may be no end of a literal
    quotes = {_open_quote(texts[0], place) for place in _places(pieces[0], marks)}
    if quotes == {None}:
        return Template(plain, plain, first)
    quote = quotes.pop()
    if quotes or quote is None or not {"{", "}"}.isdisjoint(texts[0]):
        return None
    braced = join_parts("{", "}")
    return Template(f"{braced[:quote]}f{braced[quote:]}", plain, first)


def _places(pieces: Sequence[str], marks: Sequence[bool]) -> Iterator[int]:
    """Where in a text the numbers stand that are marked."""
    place = 0
    for text, number, mark in zip(pieces[::2], pieces[1::2], marks, strict=False):
        place += len(text)
        if mark:
            yield place
        place += len(number) + 2


def _open_quote(text: str, place: int) -> int | None:
    """Where the literal begins that this place is in; None if it is in none."""
    begin = None
    for at, character in enumerate(text[:place]):
        if begin is None:
            begin = at if character in "'\"" else None
        elif character == text[begin]:
            begin = None
    return begin
