"""Rules about iterators: those that walk backwards, and those that were there before the call.

- Of a list or dict that is walked backwards, Dynamo walks a copy that it made at `reversed()`, and
  Python walks the object itself. So the object must not change meanwhile.
- Dynamo notes each step of an iterator that the code was given, and the caller frame repeats the
  steps. Where Python's own code takes all that is left, as `tuple(it)` and `f(*it)` do, Dynamo may
  note nothing, and the iterator would stay where it was.

Importing this module loads the compiler.
"""

from __future__ import annotations

import enum
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from torch._dynamo.variables import VariableTracker

from npugx_cache.trace.rules import sets
from npugx_cache.trace.stack_value import look_behind, type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from npugx_cache.trace.observe.observation import Recorder
    from npugx_cache.trace.stack_value import StackValue


class Standing(NamedTuple):
    """The iterators that were there before the call and that an instruction or call meets.

    `positions` are those among its operands, with how far the code had come in each. Others come in
    meanwhile: `entered` is how many had come in before.
    """

    positions: list[tuple[Any, tuple[object, ...]]]
    entered: int


class _Known:
    """The iterators of one trace.

    `walks`: what `reversed()` gave, what it was given, and the items at that time; by id of the
    first. `entered`: the iterators that came in, with how far each had come then.
    """

    def __init__(self) -> None:
        self.walks: dict[int, tuple[Any, Any, list[int]]] = {}
        self.entered: list[tuple[Any, tuple[object, ...]]] = []


class Takes(enum.IntEnum):
    """How much an instruction or a call may take from the iterators that it gets."""

    NOTHING = 0
    ONE = 1
    ALL = 2


def note_entry(recorder: Recorder, value: object, variable: Any) -> None:
    """When a value comes in. Of an iterator of the user's, Dynamo interprets the code."""
    step = getattr(type(value), "__next__", None)
    if step is not None and not isinstance(step, types.FunctionType):
        recorder.state(_Known).entered.append((variable, _position(variable)))


def before(recorder: Recorder, operands: Iterable[Any]) -> Standing:
    """Before an instruction or a call; `advance` takes the answer afterwards."""
    known = recorder.state(_Known)
    positions = []
    if known.walks or known.entered:
        found = list(_iterators_in(operands, set()))
        _compare(recorder, known, found)
        entered = {id(variable) for variable, _ in known.entered}
        standing = (each for each in found if id(each) in entered and _has_more(each))
        positions = [(each, _position(each)) for each in standing]
    return Standing(positions, len(known.entered))


def advance(recorder: Recorder, tx: Any, standing: Standing, asks: Callable[[], Takes]) -> None:
    """Let the frame take from an iterator what the code took; refuse those that Dynamo lost.

    `asks` says what the instruction or the call may have taken.
    """
    met = [*standing.positions, *recorder.state(_Known).entered[standing.entered :]]
    if not met or (takes := asks()) is Takes.NOTHING:
        return
    for variable, position in met:
        is_moved = _position(variable) != position
        if not _has_more(variable) and _is_of_list(variable):
            variable.index = len(variable.items)
            tx.output.side_effects.mutation(variable)
        elif not is_moved and (takes is Takes.ALL or not any(map(_is_count, position))):
            kind = type_of(look_behind(variable))
            what = "an iterator" if kind is None else f"a {kind.__qualname__}"
            recorder.refuse(f"{what} that was there before the call is walked")


def taken_by_call(callee: StackValue, args: list[Any], kwargs: dict[str, Any]) -> Takes:
    function = callee.value
    if callee.name in _STEPS or function is next:
        return Takes.ONE
    makes_one = isinstance(function, type) and hasattr(function, "__next__")  # such as zip
    if makes_one or function is iter or not sets.walks(callee, args, kwargs):
        return Takes.NOTHING
    return Takes.ALL


_STEPS = ("__next__", "send")


def taken_by_instruction(name: str) -> Takes:
    """The same of an instruction that asks its operands something."""
    if name in _TAKING_ONE:
        return Takes.ONE
    return Takes.NOTHING if name in _TAKING_NOTHING or "JUMP" in name else Takes.ALL


_TAKING_ONE = frozenset({"FOR_ITER", "SEND", "YIELD_FROM"})
_TAKING_NOTHING = frozenset(
    {
        *("GET_ITER", "GET_YIELD_FROM_ITER", "UNARY_NOT", "IS_OP", "COMPARE_OP", "BUILD_SET"),
        *("BUILD_MAP", "BUILD_CONST_KEY_MAP", "SET_ADD", "MAP_ADD", "BINARY_SUBSCR"),
        *("DELETE_SUBSCR", "BEFORE_WITH", "SETUP_WITH"),
    }
)


def note_walk(recorder: Recorder, callee: StackValue, args: list[Any], result: StackValue) -> None:
    """After a call that may have been one of `reversed()`."""
    name = callee.name or getattr(callee.value, "__name__", None)
    if callee.value is not reversed and name != "__reversed__":
        return
    given = args[0] if args else callee.owner
    walked = look_behind(given).variable if given is not None else None
    if walked is not None and (hasattr(walked, "view_items_vt") or hasattr(walked, "items")):
        walk = result.variable
        recorder.state(_Known).walks[id(walk)] = walk, walked, _items(walked)


# --- what Dynamo knows of iterators


def _iterators_in(
    operands: Iterable[Any], seen: set[int], *, inside: bool = False
) -> Iterator[Any]:
    """The iterators among values, and inside of others, such as `zip(it, b)`."""
    for each in operands:
        if not isinstance(each, VariableTracker):
            continue
        found = look_behind(each)
        variable, is_iterator = found.variable, hasattr(type_of(found), "__next__")
        if id(variable) in seen or found.is_waiting or not (is_iterator or inside):
            continue
        seen.add(id(variable))
        if is_iterator:
            yield variable
        for held in vars(variable).values():
            inner = held if isinstance(held, (list, tuple)) else (held,)
            yield from _iterators_in(inner, seen, inside=True)


def _position(iterator: Any) -> tuple[object, ...]:
    """What tells how far the code has come; nothing of an iterator that Dynamo does not count."""
    return tuple(getattr(iterator, name, None) for name in _COUNTS)


def _is_count(position: object) -> bool:
    return position is not None


_COUNTS = ("index", "it_index", "is_exhausted", "advance_count")


def _has_more(iterator: Any) -> bool:
    if getattr(iterator, "is_exhausted", False):
        return False
    if hasattr(iterator, "it_index"):  # torch 2.15 walks a list itself, and only dicts as a copy
        return bool(iterator.it_index >= 0)
    return not _is_of_list(iterator) or bool(iterator.index < len(iterator.items))


def _is_of_list(iterator: Any) -> bool:
    """Whether Dynamo knows all items of an iterator, and counts how many the code has taken."""
    return isinstance(getattr(iterator, "index", None), int) and hasattr(iterator, "items")


def _compare(recorder: Recorder, known: _Known, iterators: Iterable[Any]) -> None:
    """Refuse a list or dict that has changed since its walk backwards began."""
    for walk in iterators:
        if id(walk) not in known.walks:
            continue
        _, walked, before = known.walks[id(walk)]
        if not _has_more(walk):
            del known.walks[id(walk)]
        elif _items(walked) != before:
            what = "a list or dict that changes while it is walked backwards"
            recorder.refuse(f"{what} is traced as if it did not")


def _items(walked: Any) -> list[int]:
    """The ids of the items that a list or dict holds, in order."""
    view = getattr(walked, "view_items_vt", None)
    if view is None:
        return list(map(id, walked.items))
    if walked.python_type() is _PAIRS:  # Dynamo makes new pairs each time
        return [id(each) for pair in view for each in pair.items]
    return list(map(id, view))


_PAIRS: Any = type({}.items())
