"""Hooks on the functions with which Dynamo walks sets, or makes them.

`set_history` knows how each set came about, and in which order Python walks the set. Importing this
module loads the compiler.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from torch._dynamo import polyfills, symbolic_convert, utils
from torch._dynamo.variables import VariableTracker, lazy, user_defined

from npugx_cache.conditions import set_order
from npugx_cache.trace.observe import observation, set_texts
from npugx_cache.trace.observe.observation import Observation, Question
from npugx_cache.trace.observe.set_history import Leaf, Sets, is_added_one_by_one, is_plain

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder


def noting(hook: Callable[..., Any]) -> Callable[[Any], Any]:
    """Let `hook(sets, original, ...)` stand for a function in traces of ours."""
    return observation.around(hook, Sets)


def pausing(sets: Sets, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with sets.pause():
        return original(*args, **kwargs)


def pausing_for_set(
    sets: Sets, original: Callable[..., Any], tx: Any, value: Any, *rest: Any
) -> Any:
    """Only for a set itself: an object of user code may walk a set to find out what it is."""
    run = partial(pausing, sets, original) if is_plain(value.realize()) else original
    return run(tx, value, *rest)


def unless_key(
    sets: Sets, original: Callable[..., Any], variable: Any, tx: Any, *args: Any, **kwargs: Any
) -> Any:
    """Without a key, only equal elements of a set can change places."""
    is_set = len(args) == 1 and is_plain(args[0].realize())
    run = partial(pausing, sets, original) if is_set and not kwargs.get("key") else original
    return run(variable, tx, *args, **kwargs)


def walking(
    sets: Sets, original: Callable[..., Any], variable: Any, *args: Any, **kwargs: Any
) -> Any:
    sets.walked(variable)
    return original(variable, *args, **kwargs)


@set_texts.deferring
def showing(sets: Sets, original: Callable[..., Any], variable: Any, tx: Any) -> Any:
    """For the text of a set, Dynamo makes a new set of the elements, which has another order."""
    if sets.walked(variable) is None:
        return original(variable, tx)
    text = "{" + ", ".join(utils.tracked_repr(tx, key.vt) for key in variable.items) + "}"
    is_frozen = variable.python_type() is frozenset
    return VariableTracker.build(tx, f"frozenset({text})" if is_frozen else text)


def iterating(sets: Sets, original: Callable[..., Any], variable: Any, tx: Any) -> Any:
    code = tx.f_code
    # Dynamo's own union, intersection, ...: how their result was made is noted as a whole.
    if code.co_filename != polyfills.__file__ or not code.co_qualname.startswith("set_"):
        sets.walked(variable)
    return original(variable, tx)


def as_constant(sets: Sets, original: Callable[..., Any], variable: Any) -> Any:
    """A function of Python's own is called with the set, or a jump asks whether it has elements."""
    if _is_for_a_jump():
        return pausing(sets, original, variable)
    made = sets.walked(variable)
    if made is None or made[0] == "without":
        return original(variable)
    sets.note([Observation(Question.SET_CALLED)])
    return set_order.live(made, [leaf.value for leaf in sets.leaves])


def _is_for_a_jump() -> bool:
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and (
        observation.passes_on(frame.f_code) or frame.f_code.co_filename == lazy.__file__
    ):
        frame = frame.f_back
    return frame is not None and frame.f_code in _JUMPS


_JUMPS = frozenset(
    each for each in symbolic_convert.generic_jump.__code__.co_consts if hasattr(each, "co_code")
)
"""The code with which Dynamo decides whether to jump, as for `if names:`."""


def extending(
    sets: Sets,
    original: Callable[..., Any],
    variable: Any,
    tx: Any,
    name: str,
    args: list[Any],
    kwargs: Any,
) -> Any:
    if name == "extend" and args:
        sets.walked(args[0].realize())
    return original(variable, tx, name, args, kwargs)


def extending_in_place(
    sets: Sets, original: Callable[..., Any], variable: Any, tx: Any, args: list[Any], kwargs: Any
) -> Any:
    """`items += some_set`, and `list.__init__`."""
    sets.walked(args[0].realize())
    return original(variable, tx, args, kwargs)


def filling(sets: Sets, original: Callable[..., Any], variable: Any, tx: Any, other: Any) -> Any:
    """A set is given to something that keeps the order of filling, such as torch's OrderedSet."""
    if not is_plain(variable):
        sets.walked(other.realize())
    return original(variable, tx, other)


def making_keys(
    sets: Sets, original: Callable[..., Any], tx: Any, kind: type, *args: Any, **kwargs: Any
) -> Any:
    """See `dict.fromkeys(some_set)`."""
    for each in args[:1]:
        sets.walked(each.realize())
    return original(tx, kind, *args, **kwargs)


def calling_inherited(
    sets: Sets, original: Callable[..., Any], method: Any, variable: Any, *given: Any
) -> Any:
    """A method of a builtin class, which a class of user code inherits."""
    run: Callable[..., Any] = partial(original, method)
    if isinstance(variable, user_defined.UserDefinedObjectVariable):
        run = partial(calling, sets, partial(extending, sets, run))
    return run(variable, *given)


def calling(
    sets: Sets,
    original: Callable[..., Any],
    variable: Any,
    tx: Any,
    name: str,
    args: list[Any],
    kwargs: Any,
) -> Any:
    if not is_plain(variable) or kwargs:
        return original(variable, tx, name, args, kwargs)
    if name == "pop" and _is_changeable(variable) and variable.items and not args:
        return sets.method(variable, name, args, lambda: sets.popped(variable, tx))
    return sets.method(variable, name, args, lambda: original(variable, tx, name, args, kwargs))


def _is_changeable(variable: Any) -> bool:
    return issubclass(variable.python_type(), set)


def operating(name: str) -> Callable[..., Any]:
    def hook(
        sets: Sets,
        original: Callable[..., Any],
        variable: Any,
        tx: Any,
        other: Any,
        reverse: bool = False,
    ) -> Any:
        run = partial(original, variable, tx, other, reverse)
        first, second = (other, variable) if reverse else (variable, other)
        return sets.method(first, name, [second], run) if is_plain(first) else run()

    return hook


def changing(name: str) -> Callable[..., Any]:
    def hook(sets: Sets, original: Callable[..., Any], variable: Any, tx: Any, other: Any) -> Any:
        return sets.method(variable, name, [other], lambda: original(variable, tx, other))

    return hook


def made(
    sets: Sets, original: Callable[..., Any], variable: Any, items: Any, **kwargs: Any
) -> None:
    """A set that traced code makes of elements, or an empty one."""
    items = list(items)
    original(variable, items, **kwargs)
    if is_plain(variable) and variable.source is None:
        copied = any(type(item).__name__ == "HashableTracker" for item in items)
        sets.made(variable, None, None if copied else [])


def cloned(sets: Sets, original: Callable[..., Any], variable: Any, **kwargs: Any) -> Any:
    clone = original(variable, **kwargs)
    sets.cloned(variable, clone)
    return clone


def copied(sets: Sets, original: Callable[..., Any], variable: Any) -> Any:
    return sets.method(variable, "copy", [], lambda: original(variable))


def frozen(
    sets: Sets, original: Callable[..., Any], variable: Any, tx: Any, *args: Any, **kwargs: Any
) -> Any:
    if len(args) != 1 or is_added_one_by_one(args[0]):
        return original(variable, tx, *args, **kwargs)
    how = sets.operand(args[0])
    result = pausing(sets, original, variable, tx, *args, **kwargs)
    if result is not args[0].realize():
        sets.made(result, None if how is None else ["call", "frozenset", how])
    return result


def wrapped(sets: Sets, original: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
    """A set that was there before the trace, or that a function of Python's own gave."""
    result = original(value, **kwargs)
    if is_plain(result):
        source = kwargs.get("source")
        sets.made(result, None)
        if source is not None:
            sets.found(result, Leaf(value, source))
    return result


def constant(sets: Sets, original: Callable[..., Any], translator: Any, instruction: Any) -> Any:
    result, code = original(translator, instruction), translator.f_code
    if is_plain(result):
        value = instruction.argval
        places = [i for i, each in enumerate(code.co_consts) if each is value]
        if places:
            sets.found(result, Leaf(value, None, code, places[0]))
    return result


@noting
def forgetting(sets: Sets, handler: Callable[..., Any], tx: Any, value: Any) -> Any:
    result = handler(tx, value)
    if is_plain(result):
        sets.made(result, None)
    return result


def forgetting_result(sets: Sets, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Dynamo fills the result in another order than Python, which may choose either operand."""
    result = original(*args, **kwargs)
    if is_plain(result):
        sets.made(result, None)
    return result


# --- for a torch whose sets are not seen


def refuse_walk(recorder: Recorder, variable: Any, *_: Any) -> None:
    """Refuse a walk over a set, or over a constant that is a set."""
    is_set = type(variable).__name__ in ("SetVariable", "FrozensetVariable")
    elements = variable.items if is_set else getattr(variable, "value", ())
    if (is_set or isinstance(elements, (set, frozenset))) and len(elements) > 1:
        recorder.refuse("with this torch the order of a set has no guard")


def refuse_pop(recorder: Recorder, variable: Any, tx: Any, name: str, *_: Any) -> None:
    del tx
    if name == "pop":
        refuse_walk(recorder, variable)
