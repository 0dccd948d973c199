"""Limits how often one function is compiled, and says what kept changing when that is too often.

An object that is different at every call (a list that grows, a size, a number) would otherwise cost
a compile and an entry for each call, as long as the process lives.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npugx_cache.events import Refusal

Leaves: TypeAlias = tuple[tuple[str, str], ...]
"""Paths and texts of the arguments, as in `Signature.leaves`."""

_SUBJECT = re.compile(r"(?:no longer true: )?(.+?)(?=: | was | changed| does not exist|$)")
_ADVICE = (
    (": size was", "pass dynamic=True, so that one graph serves all sizes, or pad to a few sizes"),
    (".size(", "pad to a few sizes, because the function needs this size as a number"),
    ("len(", "keep what grows out of the function and of hooks, or empty it between calls"),
    ("torch.", "set torch's switches once, before the first call"),
)
FEW = 2
"""How many compiles calls may cause after another process came to the limit, which keeps changing
values from a compile inside more and more requests at each restart. With the second graph a size
that varies becomes dynamic."""
_DEFAULT = "pass a value that changes as a tensor, or keep it the same"


class Recompiles:
    """Counts the compiles of one function that calls have caused; `.warm()` is not counted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._differences: list[str] = []
        self._last: Leaves = ()
        self._excess: str | None = None

    def note(self, leaves: Leaves, nearest: Refusal | None) -> None:
        """Count the compile of a call with these arguments. `nearest` says how no entry fits it."""
        self._count += 1
        if nearest is not None:
            self._differences += nearest.reasons
        else:
            self._differences += _between(self._last, leaves)
        self._last = leaves

    def excess(self, earlier: Callable[[], str | None]) -> str | None:
        """Why nothing more is compiled, once the limit is reached.

        `earlier` gives what a process said that came to the limit before, or None.
        """
        if self._excess is None:
            if self._count >= self._limit:
                self._excess = self._words()
            elif self._count >= FEW and (said := earlier()) is not None:
                self._excess = (
                    f"another process that shares this store said: {said}. So this one stops "
                    f"after {FEW}; `npugx-cache prune --refusals` forgets that"
                )
        return self._excess

    @property
    def is_reached(self) -> bool:
        """Whether calls of this process have come to the limit; never, if they may compile none."""
        return 0 < self._limit <= self._count

    def _words(self) -> str:
        if not self._limit:
            return (
                "NPUGX_CACHE_RECOMPILE_LIMIT=0 lets calls restore stored graphs and compile none, "
                "and no stored graph accepts this call; to change that, call .warm() or raise it"
            )
        times = f"calls have caused {self._count} compiles of this function in this process"
        last = self._most_common()
        changing = f": {_subject(last)} keeps changing ({last})" if last else ""
        change = next((text for mark, text in _ADVICE if mark in last), _DEFAULT)
        return (
            f"{times}{changing}. From now on calls that need another graph run eagerly here and "
            f"nothing more is stored; to change that, {change}. NPUGX_CACHE_RECOMPILE_LIMIT sets "
            "the limit, and .warm() does not count towards it"
        )

    def _most_common(self) -> str:
        """The latest difference of the thing that differed most often, or ""."""
        counted = Counter(map(_subject, self._differences)).most_common(1)
        named = [text for text in self._differences if counted and _subject(text) == counted[0][0]]
        return named[-1] if named else ""


def _subject(difference: str) -> str:
    found = _SUBJECT.match(difference)
    return found[1] if found else difference


def _between(before: Leaves, now: Leaves) -> Iterable[str]:
    was = dict(before)
    for path, text in now:
        if was.get(path, text) != text:
            yield f"{path} was {was[path]}, is {text}"
