"""Hands the calls of cached functions to the stage of a triage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from npugx_cache.api import CachedFunction

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.binding import State
    from npugx_cache.config import Settings
    from npugx_cache.key.recipe import Recipe

# ruff: noqa: SLF001 - the one place that stands between a cached function and its graphs


class Run(Protocol):
    """Makes one call of a cached function: see `reroute`."""

    def __call__(
        self,
        cached: CachedFunction[..., Any],
        recipe: Recipe,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        /,
    ) -> Any: ...


def reroute(changed: Callable[[Recipe, Settings], tuple[Recipe, Settings]], run: Run) -> None:
    """Hand all calls of cached functions in this process to `run`.

    `run` is given the recipe of the function that is called, the arguments (with the object that
    the function is bound to), and the same function cached by what `changed` makes of its recipe
    and settings; that one is called without the object. A call inside such a call is not handed
    over, nor is one that somebody traces.
    """
    found = CachedFunction._find
    others: dict[int, tuple[State, CachedFunction[..., Any]]] = {}
    made: set[int] = set()

    def find(
        self: CachedFunction[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        **how: bool,
    ) -> Callable[..., Any]:
        if id(self) in made:
            return found(self, args, kwargs, **how)
        if id(self._state) not in others:
            recipe, settings = changed(self._recipe, self._settings)
            other: CachedFunction[..., Any] = CachedFunction(
                recipe, settings, self._owner, of_class=self._of_class
            )
            others[id(self._state)] = self._state, other
            made.add(id(other))
        other, recipe = others[id(self._state)][1], self._recipe
        return lambda *given, **named: run(other, recipe, given, named)

    CachedFunction._find = find  # type: ignore[method-assign]
