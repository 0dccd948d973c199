"""Fingerprint: ordered, named factors known before tracing -> the key of a lookup.

Each factor is a name and a text. The texts are part of every manifest, so that a miss can be
explained by comparing factors. No path, pid, port, object id or clock may enter one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from npugx_cache.portable import digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Span = Literal["process", "call"]


class Factor(NamedTuple):
    """`span` "call": can change while the process lives, so it is compared at every call too."""

    name: str
    value: str
    span: Span = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    factors: tuple[Factor, ...]
    key: str

    @classmethod
    def of(cls, factors: Iterable[Factor]) -> Fingerprint:
        ordered = tuple(sorted(factors))
        return cls(factors=ordered, key=digest(part for f in ordered for part in f[:2]))


def differences(recorded: Iterable[Iterable[str]], live: Iterable[Iterable[str]]) -> Iterator[str]:
    """The factors that differ, in words. Rows are (name, value, ...)."""
    before = {name: value for name, value, *_ in recorded}
    now = {name: value for name, value, *_ in live}
    for name in sorted(before.keys() | now.keys()):
        was, is_ = before.get(name), now.get(name)
        if was == is_:
            continue
        if was is None or is_ is None:
            yield f"{name} was {was or 'not set'}, is {is_ or 'not set'}"
        elif _is_hash(was) and _is_hash(is_):
            yield f"{name} changed"
        else:
            yield f"{name} was {was}, is {is_}"


def _is_hash(text: str) -> bool:
    return len(text) >= 32 and all(c in "0123456789abcdef" for c in text)
