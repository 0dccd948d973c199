"""`CachedGraph`: what runs in the place of a graph that somebody else traced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.events import Refusal


class CachedGraph:
    """Takes the values of the graph's placeholders in order, and returns what the graph returns.

    `entry` is the id of its store entry, or None if the graph is not stored. What it is called with
    is the caller's word: whoever traced the graph checks that a call fits, as Dynamo does with its
    guards.
    """

    __slots__ = ("_explained", "_run", "entry")

    def __init__(
        self, run: Callable[..., Any], entry: str | None, explained: tuple[Refusal, ...]
    ) -> None:
        self._run = run
        self._explained = explained
        self.entry = entry

    def __call__(self, *inputs: Any) -> Any:
        return self._run(*inputs)

    def explain(self) -> tuple[Refusal, ...]:
        """What the lookup came to: the entry that was used, or why no stored entry was."""
        return self._explained
