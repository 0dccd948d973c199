"""Rules about iterators: those that walk backwards, and those that the code was given.

- Of a list or dict that is walked backwards, Dynamo walks a copy that it made at `reversed()`, and
  Python walks the object itself. So the object must not change meanwhile.
- The caller frame takes from an iterator that the code was given as many items as Dynamo counted.
  Dynamo counts each step of a `for` loop and of `next()`. What takes all items at once, as
  `tuple(it)` and `f(*it)` do, it often does not count; these rules do. It counts otherwise than
  Python where an exception ends the taking, and where other functions of Python's take items; there
  the trace is refused.

Importing this module loads the compiler.
"""

from __future__ import annotations

import enum
import itertools
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from torch._dynamo.variables import VariableTracker

from npugx_cache.trace.rules import containers, sets
from npugx_cache.trace.stack_value import called_name, look_behind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from npugx_cache.trace.observe.observation import Recorder
    from npugx_cache.trace.stack_value import StackValue

Position = tuple[object, ...]
"""How far the code has come in an iterator, as Dynamo counts."""


class _Walk(NamedTuple):
    """A walk backwards: what `reversed()` gave, what it was given, and the items at that time."""

    variable: Any
    walked: Any
    items: list[int]


class _Known:
    """The walks backwards of one trace by the ids of their variables, and the given iterators."""

    def __init__(self) -> None:
        self.walks: dict[int, _Walk] = {}
        self.given: dict[int, Any] = {}


class Takes(enum.Enum):
    """What an instruction or a call may take from the iterators that it gets."""

    NOTHING = "nothing: it asks something else, or takes items later, as zip() does"
    ONE = "one item, which Dynamo counts"
    ALL = "all items that are left, unless it raises"
    UNKNOWN = "some items"


def note_entry(recorder: Recorder, value: object, variable: Any) -> None:
    """When a value comes in.

    Of an iterator whose class is written in Python, Dynamo interprets the code, so that such an
    iterator needs no rule.
    """
    step = getattr(type(value), "__next__", None)
    if step is not None and not isinstance(step, types.FunctionType):
        recorder.state(_Known).given[id(variable)] = variable


def watch(
    recorder: Recorder,
    tx: Any,
    operands: Iterable[Any],
    how_much: Callable[[], Takes],
    run: Callable[[], Any],
) -> Any:
    """Run an instruction or a call; `how_much` says what it may take from its operands."""
    operands = [each for each in operands if isinstance(each, VariableTracker)]
    if any(map(_is_waiting, operands)) and how_much() is not Takes.NOTHING:
        _realize(operands)
    known = recorder.state(_Known)
    found = list(_iterators_in(operands, set())) if known.walks or known.given else []
    _compare(recorder, known, found)
    met = [each for each in found if id(each) in known.given and _has_more(each)]
    before = {key: _position(each) for key, each in known.given.items()}
    try:
        result = run()
    except Exception:
        # Also of an iterator that came in meanwhile, Dynamo may have taken more than Python.
        is_moved = any(_position(each) != before.get(key) for key, each in known.given.items())
        if (met or is_moved) and how_much() in (Takes.ALL, Takes.UNKNOWN):
            _refuse(recorder)
        raise
    if met:
        takes, direct = how_much(), {id(look_behind(each).variable) for each in operands}
        for each in met:
            _settle(recorder, tx, each, before[id(each)], takes, is_inside=id(each) not in direct)
    return result


def _settle(
    recorder: Recorder, tx: Any, given: Any, before: Position, takes: Takes, *, is_inside: bool
) -> None:
    """Count what was taken from a given iterator, or refuse the trace."""
    counted = _position(given) != before
    if takes is Takes.NOTHING:
        return
    if takes is Takes.ONE:
        if not counted and not _is_counted(given):  # such as a generator
            _refuse(recorder)
    elif takes is Takes.ALL and not is_inside and not _has_more(given) and _is_of_list(given):
        given.index = len(given.items)
        tx.output.side_effects.mutation(given)
    elif takes is Takes.UNKNOWN or is_inside or not counted:
        _refuse(recorder)


def _refuse(recorder: Recorder) -> None:
    recorder.refuse("items are taken from an iterator that was there before the call")


# --- what takes how much


def taken_by_call(callee: StackValue, args: list[Any], kwargs: dict[str, Any]) -> Takes:
    function = callee.value
    if callee.name in ("__next__", "send") or function is next:
        return Takes.ONE
    if any(function is each for each in _LATER):
        return Takes.NOTHING
    if any(function is each for each in _WHOLE) or callee.name == "extend":
        return Takes.ALL
    is_sorting = any(function is each for each in (sorted, min, max))
    return Takes.UNKNOWN if is_sorting or sets.walks(callee, args, kwargs) else Takes.NOTHING


_LATER = (
    *(iter, zip, map, filter, enumerate, itertools.tee, itertools.islice, itertools.chain),
    *(itertools.takewhile, itertools.dropwhile, itertools.filterfalse, itertools.zip_longest),
    *(itertools.accumulate, itertools.starmap, itertools.compress, itertools.pairwise),
)
_WHOLE = (tuple, list, any, all)


def taken_by_instruction(name: str) -> Takes:
    """The same of an instruction that asks its operands something."""
    if "JUMP" in name:
        return Takes.NOTHING
    return next((takes for takes, names in _INSTRUCTIONS.items() if name in names), Takes.UNKNOWN)


_INSTRUCTIONS = {
    Takes.ONE: frozenset({"FOR_ITER", "SEND", "YIELD_FROM"}),
    Takes.ALL: frozenset(
        {"UNPACK_SEQUENCE", "UNPACK_EX", "LIST_EXTEND", "CONTAINS_OP", "CALL_FUNCTION_EX"}
    ),
    Takes.NOTHING: frozenset(
        {
            *("GET_ITER", "GET_YIELD_FROM_ITER", "UNARY_NOT", "IS_OP", "COMPARE_OP", "BUILD_SET"),
            *("BUILD_MAP", "BUILD_CONST_KEY_MAP", "SET_ADD", "MAP_ADD", "BINARY_SUBSCR"),
            *("DELETE_SUBSCR", "BEFORE_WITH", "SETUP_WITH"),
        }
    ),
}


# --- walks backwards


def note_walk_backwards(
    recorder: Recorder, callee: StackValue, args: list[Any], result: StackValue
) -> None:
    """After a call that may have been one of `reversed()`."""
    if callee.value is not reversed and called_name(callee) != "__reversed__":
        return
    given = args[0] if args else callee.owner
    if given is None:
        return
    walked = containers.table_of(look_behind(given).variable)
    if hasattr(walked, "view_items_vt") or hasattr(walked, "items"):
        walk = _Walk(result.variable, walked, _items(walked))
        recorder.state(_Known).walks[id(walk.variable)] = walk


def _compare(recorder: Recorder, known: _Known, iterators: Iterable[Any]) -> None:
    """Refuse a list or dict that has changed since its walk backwards began."""
    for each in iterators:
        walk = known.walks.get(id(each))
        if walk is not None and _has_more(each) and _items(walk.walked) != walk.items:
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


# --- what Dynamo knows of iterators


def _realize(values: Iterable[VariableTracker]) -> None:
    """Let iterators come in that Dynamo has not looked at."""
    for each in filter(_is_waiting, values):
        each.realize()


def _is_waiting(variable: VariableTracker) -> bool:
    """Whether it is an iterator that Dynamo has not looked at."""
    waiting: Any = vars(variable).get("_cache")
    if waiting is None or getattr(waiting, "vt", None) is not None:
        return False
    return hasattr(type(getattr(waiting, "value", None)), "__next__")


def _iterators_in(values: Iterable[Any], seen: set[int], *, inside: bool = False) -> Iterator[Any]:
    """The iterators among values, and inside of others, such as `zip(it, b)`."""
    values = [each for each in values if isinstance(each, VariableTracker)]
    _realize(values)
    for each in values:
        found = look_behind(each)
        variable = found.variable
        if id(variable) in seen or found.is_waiting:
            continue
        is_iterator = _is_iterator(variable)
        if not is_iterator and not inside:
            continue
        seen.add(id(variable))
        if is_iterator:
            yield variable
        for held in vars(variable).values():
            parts = held if isinstance(held, (list, tuple)) else (held,)
            yield from _iterators_in(parts, seen, inside=True)


def _is_iterator(variable: Any) -> bool:
    """Whether it is one, or may be one, because Dynamo does not know the type."""
    try:
        kind = variable.python_type()
    except Exception:  # noqa: BLE001 - Dynamo raises what it likes
        return "proxy" not in vars(variable)
    return hasattr(kind, "__next__")


def _position(iterator: Any) -> Position:
    return tuple(getattr(iterator, name, None) for name in _COUNTS)


_COUNTS = ("index", "it_index", "is_exhausted", "advance_count")
"""The attributes with which Dynamo counts."""


def _is_counted(iterator: Any) -> bool:
    return any(hasattr(iterator, name) for name in _COUNTS)


def _has_more(iterator: Any) -> bool:
    if getattr(iterator, "is_exhausted", False):
        return False
    if hasattr(iterator, "it_index"):  # torch 2.15 walks a list itself, and only dicts as a copy
        return bool(iterator.it_index >= 0)
    return not _is_of_list(iterator) or bool(iterator.index < len(iterator.items))


def _is_of_list(iterator: Any) -> bool:
    """Whether Dynamo knows all items of an iterator, and counts how many the code has taken."""
    return isinstance(getattr(iterator, "index", None), int) and hasattr(iterator, "items")
