"""What a trace gives where it gives no graph that can be stored. Loads no compiler.

`trace.call` makes these, and a lookup tells them apart, also on a torch that can't be traced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npugx_cache.conditions.argument_facts import Pinned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npugx_cache.conditions import Conditions
    from npugx_cache.conditions.evaluate import Scope
    from npugx_cache.conditions.set_up import SetUp


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOnly:
    """A traced call that only this process may run, because a part of it has no portable form.

    `guards` takes the frame's locals and runs torch's own guards. `unchanged` tells whether the
    classes and functions that the trace met are as they were. `conditions` as in `Untraceable`.
    """

    reason: str
    guards: Callable[[Mapping[str, Any]], bool]
    unchanged: Callable[[], bool]
    run: Callable[..., Any]
    conditions: Conditions | None = None

    def pinned_facts(self) -> Pinned:
        """Nothing: what torch's guards demand is not known here."""
        return Pinned()

    def holds(self, scope: Scope) -> bool:
        """Whether this process may run it for a call: `restore.Repeated`."""
        return self.guards(scope.frame_locals) and self.unchanged()

    holds_quickly = holds

    def let_go(self) -> None:
        """Nothing: torch's guards keep what they keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Untraceable:
    """A call that can't be traced as one graph.

    `lasting` is False if the reason says nothing about the function, so that the next call may be
    traced. `conditions` are what the refusal depends on, for other processes; None if unknown.
    `raised`: the function itself may raise for this call, which then says nothing about others.
    `breaks`: Dynamo gave up at a line, so that it may trace what comes before and after that line.
    """

    reason: str
    lasting: bool = True
    conditions: Conditions | None = None
    raised: bool = False
    breaks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUpFirst:
    """A call that can be traced once a model is set up. `reason` says that in words.

    `stored` is for other processes: the conditions, and the place of the model in their tree. None
    if a part of the conditions has no portable form. `sizes` as in `Traced`.
    """

    set_up: SetUp
    reason: str
    stored: tuple[Conditions, int] | None
    sizes: tuple[list[Any], list[Any]]
