"""Hooks on the functions with which Dynamo makes a text or a Python object of a set.

No instruction and no call shows these where the set is a part of something else. Importing this
module loads the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._dynamo import utils
from torch._dynamo.variables import VariableTracker

from npugx_cache.conditions import set_order
from npugx_cache.trace.observe import observation
from npugx_cache.trace.observe.observation import Observation, Question
from npugx_cache.trace.observe.set_history import Sets

if TYPE_CHECKING:
    from collections.abc import Callable


def noting(hook: Callable[..., Any]) -> Callable[[Any], Any]:
    """Let `hook(sets, original, ...)` stand for a function in traces of ours."""
    return observation.around(hook, Sets)


def pausing(sets: Sets, original: Callable[..., Any], *args: Any) -> Any:
    """Dynamo only asks whether the set is a constant."""
    with sets.inside(None):
        return original(*args)


def showing(sets: Sets, original: Callable[..., Any], variable: Any, tx: Any) -> Any:
    """For the text of a set, Dynamo makes a new set of the elements, which has another order."""
    if sets.note_walk(variable) is None:
        return original(variable, tx)
    text = "{" + ", ".join(utils.tracked_repr(tx, key.vt) for key in variable.items) + "}"
    is_frozen = variable.python_type() is frozenset
    return VariableTracker.build(tx, f"frozenset({text})" if is_frozen else text)


def as_constant(sets: Sets, original: Callable[..., Any], variable: Any) -> Any:
    """A function of Python's own is called with the set, which it may walk."""
    made = sets.note_walk(variable) if sets.calls else None
    if made is None or made[0] == "without":
        return original(variable)
    sets.note([Observation(Question.SET_CALLED)])
    return set_order.live(made, [leaf.value for leaf in sets.leaves])
