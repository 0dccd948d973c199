"""What runs a call for which there is no graph to bind: the function itself, or what has run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.entry.restore import Specialisation


@dataclass(frozen=True, slots=True)
class Bypass:
    """The call runs eagerly, or `instead` runs it: its pieces, or what has run already.

    `ended`, if it is given, must be called when the function has run, with what it raised or None.
    """

    reason: str
    ended: Callable[[Exception | None], None] | None = None
    instead: Callable[..., Any] | None = None

    def runs(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What runs the call in the place of a graph."""
        ended, runs = self.ended, self.instead or function
        if ended is None:
            return runs

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                result = runs(*args, **kwargs)
            except Exception as error:
                ended(error)
                raise
            ended(None)
            return result

        return run


@dataclass(frozen=True, slots=True)
class Ran:
    """A new graph that has run the call already, to be compared, and its result.

    Like a `Bypass`, it says what runs the call: nothing runs any more.
    """

    graph: Specialisation
    result: Any

    def runs(self, _: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *_, **__: self.result
