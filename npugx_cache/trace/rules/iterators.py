"""Rules about iterators: those whose object may not change, and those that the code was given.

- Of a list or dict that is walked backwards, Dynamo walks a copy that it made at `reversed()`, and
  Python walks the object itself. So the object must not change meanwhile.
- A deque that changes while it is walked raises in Python. Dynamo goes on, and where each step adds
  an item, a trace would never end. So the change ends the trace.
- The caller frame takes from an iterator that the code was given as many items as Dynamo counted.
  Dynamo counts each step of a `for` loop and of `next()`. What takes all items at once, as
  `tuple(it)` and `f(*it)` do, it often does not count; these rules do. It counts otherwise than
  Python where an exception ends the taking, and where other functions of Python's take items; there
  the trace is refused.
- Before torch 2.13 map() and filter() take all items at once, and walk a copy. So what they were
  given must not change meanwhile, and no other code may take items from it.

Importing this module loads the compiler.
"""

from __future__ import annotations

import builtins
import collections
import dis
import enum
import itertools
import types
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torch._dynamo.variables import VariableTracker

from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.trace.observe import observation, unkept_calls
from npugx_cache.trace.rules import containers, sets, walked_in_c
from npugx_cache.trace.stack_value import (
    called_name,
    look_behind,
    table_of,
    type_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from npugx_cache import location
    from npugx_cache.trace.observe.observation import Recorder
    from npugx_cache.trace.stack_value import StackValue

Position = tuple[object, ...]
"""How far the code has come in an iterator, as Dynamo counts."""


class _Walk(NamedTuple):
    """A walk over an object that must not change: the iterator, the object, its items at the start.

    `raises_at_end`: Python compares the object before it says that no item is left.
    """

    iterator: Any
    walked: Any
    items: list[int]
    raises_at_end: bool


class _Known:
    """The walks of one trace by the ids of their iterators, and the given iterators.

    `running` are the walks that an instruction or a call goes on with, as `list(map(f, items))`
    does: what `f` changes is seen at the next call of `f`. `generators` are those that the traced
    code makes and that handle exceptions, with the places of their calls. `copied` are the
    iterators of which Dynamo walks a copy, and `backwards` what `reversed()` has made.
    """

    def __init__(self) -> None:
        self.walks: dict[int, list[_Walk]] = {}
        self.running: list[_Walk] = []
        self.given: dict[int, Any] = {}
        self.generators: list[tuple[Any, location.Place | None]] = []
        self.copied: dict[int, Any] = {}
        self.backwards: dict[int, Any] = {}


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
    if isinstance(value, _KEYS):
        recorder.refuse("the order of the keys of a view that was there before has no guard")
    step = getattr(type(value), "__next__", None)
    if step is not None and not isinstance(step, types.FunctionType):
        recorder.state(_Known).given[id(variable)] = variable


_KEYS: type = type({}.keys())


def call(
    recorder: Recorder,
    tx: Any,
    callee: StackValue,
    args: list[Any],
    kwargs: dict[str, Any],
    run: Callable[[], Any],
) -> Any:
    """Run a call."""
    operands = (callee.owner, *args, *kwargs.values())
    how_much = partial(_taken_by_call, callee, args, kwargs)
    result = _watch(recorder, tx, "", operands, how_much, run)
    if result is not None:
        _note_call(recorder, callee, args, look_behind(result).variable)
        _note_copies(recorder, args, look_behind(result).variable)
        _note_generator(recorder, look_behind(result))
    return result


def _note_copies(recorder: Recorder, args: list[Any], made: Any) -> None:
    """After a call that may have made an iterator over a copy of what it was given."""
    if not walks_a_copy(made):
        return
    walked = args[1:]  # the first is the function that map() and filter() call
    _note_walks(recorder, made, walked, is_backwards=True)
    known = recorder.state(_Known)
    for each in _iterators_in(walked, known):
        known.copied[id(each)] = each
        # Dynamo may say by now that no item is left.
        if id(each) in known.given and getattr(each, "items", None) != []:
            _refuse(recorder)


def walks_a_copy(iterator: Any) -> bool:
    """Whether Dynamo has taken all items before, as it does for map() and filter()."""
    fields = vars(iterator)
    held = [fields.get("iterable"), *(fields.get("iterables") or ())]
    return any(isinstance(each, list) for each in held)


def walks_backwards(recorder: Recorder, variable: Any) -> bool:
    """Whether `reversed()` has made it.

    A frame would make another object: of a range it forgets an item, and before torch 2.13 it makes
    a tuple.
    """
    return id(variable) in recorder.state(_Known).backwards


def _note_generator(recorder: Recorder, made: StackValue) -> None:
    """After a call that may have made a generator that does something when it is dropped."""
    # Dynamo gives some the source of their function, so that a source says nothing.
    is_run_here = getattr(made.variable, "inline_tracer", None) is not None
    if is_run_here and _handles_exceptions(made.variable.get_code()):
        place = observation.place_of_the_trace()
        recorder.state(_Known).generators.append((made.variable, place))


def refuse_unfinished(recorder: Recorder) -> None:
    """Before the function returns: refuse generators that were dropped where that does something.

    Python raises `GeneratorExit` where a generator waits, so that its `finally` or `except` runs,
    or it leaves its `with`. Dynamo does nothing; since torch 2.14 it does so after the return.
    """
    for generator, place in recorder.state(_Known).generators:
        if _does_something_when_dropped(generator.inline_tracer):
            name = generator.get_code().co_qualname
            recorder.refuse(f"the generator {name} is dropped before its end", where=place)


def _handles_exceptions(code: types.CodeType) -> bool:
    """Whether code has an `except`, a `finally` or a `with`."""
    if not code.co_exceptiontable:
        return False
    return any(each.opname == _HANDLES for each in dis.get_instructions(code))


def _does_something_when_dropped(tracer: Any) -> bool:
    """Whether a `GeneratorExit` comes to a handler, where Dynamo has come to.

    A generator that Dynamo left by an exception stands behind its last instruction. Of Python's own
    code and torch's, a handler may be one that catches an `Exception` alone.
    """
    instructions, at = tracer.instructions, tracer.instruction_pointer
    is_over = getattr(tracer, "generator_exhausted", False)
    if is_over or at is None or at >= len(instructions):
        return False
    module = tracer.f_globals.get("__name__")
    is_of_library = isinstance(module, str) and is_covered_module(module)
    entry = instructions[at].exn_tab_entry
    while entry is not None:
        # What does not begin so only raises the exception again, to the next handler outside.
        if entry.target.opname == _HANDLES:
            start = instructions.index(entry.target) + 1
            names, match = instructions[start : start + 2]
            error = vars(builtins).get(names.argval) if names.opname == "LOAD_GLOBAL" else None
            is_other = isinstance(error, type) and issubclass(error, Exception)
            if not is_of_library or match.opname != "CHECK_EXC_MATCH" or not is_other:
                return True
        entry = entry.target.exn_tab_entry
    return False


_HANDLES = "PUSH_EXC_INFO"
"""The first instruction of an `except`, a `finally`, and of what an exception runs of a `with`."""


def operate(
    recorder: Recorder, tx: Any, name: str, operands: Iterable[Any], run: Callable[[], Any]
) -> Any:
    """Run an instruction."""
    result = _watch(recorder, tx, name, operands, partial(_taken_by_instruction, name), run)
    if name in ("GET_ITER", "GET_YIELD_FROM_ITER"):
        _note_walks(recorder, look_behind(tx.stack[-1]).variable, operands, is_backwards=False)
    return result


def _watch(
    recorder: Recorder,
    tx: Any,
    name: str,
    operands: Iterable[Any],
    how_much: Callable[[], Takes],
    run: Callable[[], Any],
) -> Any:
    """Run an instruction, or a call, which has no `name` here.

    `how_much` says what it may take from its operands.
    """
    operands = [each for each in operands if isinstance(each, VariableTracker)]
    if any(map(_is_waiting, operands)) and how_much() is not Takes.NOTHING:
        _realize(operands)
    if any(map(_is_endless, operands)) and how_much() in (Takes.ALL, Takes.UNKNOWN):
        _refuse_endless(recorder)
    known = recorder.state(_Known)
    is_any = known.walks or known.given or known.copied
    found = list(_iterators_in(operands, known)) if is_any else []
    if any(id(each) in known.copied for each in found):
        recorder.refuse("items are taken from an iterator that map() or filter() walks")
    walks = [walk for each in found for walk in known.walks.get(id(each), ())]
    _compare(recorder, (*walks, *known.running))
    met = [each for each in found if id(each) in known.given and _has_more(each)]
    before = {key: _position(each) for key, each in known.given.items()}
    mark = len(known.running)
    known.running += walks
    try:
        result = run()
        _compare(recorder, [each for each in walks if each.raises_at_end])
    except Exception as error:
        # Also of an iterator that came in meanwhile, Dynamo may have taken more than Python.
        is_moved = any(_position(each) != before.get(key) for key, each in known.given.items())
        if (met or is_moved) and how_much() in (Takes.ALL, Takes.UNKNOWN):
            _refuse(recorder)
        if (reason := walked_in_c.obstacle_of_error(name, operands, error, tx)) is not None:
            recorder.refuse(reason)
        raise
    finally:
        del known.running[mark:]
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


def _refuse_endless(recorder: Recorder) -> None:
    """End the trace, which would never end: Python stops where it has seen enough items."""
    reason = "torch would take all items of an itertools.count"
    recorder.refuse(reason)
    raise unkept_calls.NotKept(reason)


def _refuse(recorder: Recorder) -> None:
    recorder.refuse("items are taken from an iterator that was there before the call")


# --- what takes how much


def _taken_by_call(callee: StackValue, args: list[Any], kwargs: dict[str, Any]) -> Takes:
    function = callee.value
    if callee.name in ("__next__", "send") or function is next:
        return Takes.ONE
    if any(function is each for each in _LATER):
        return Takes.NOTHING
    if any(function is each for each in _WHOLE) or callee.name == "extend":
        return Takes.ALL
    is_sorting = any(function is each for each in (sorted, min, max))
    return Takes.UNKNOWN if is_sorting or sets.walks(callee, args, kwargs) else Takes.NOTHING


_AT_ONCE = (
    *(iter, zip, map, filter, enumerate, itertools.tee, itertools.islice, itertools.accumulate),
    *(itertools.takewhile, itertools.dropwhile, itertools.filterfalse, itertools.zip_longest),
    *(itertools.starmap, itertools.compress, itertools.pairwise),
)
"""Functions that ask what they are given for an iterator at once, and for items later."""
_LATER = (*_AT_ONCE, itertools.chain)
_WHOLE = (tuple, list, any, all)


def _taken_by_instruction(name: str) -> Takes:
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


# --- walks over what must not change


def _note_call(recorder: Recorder, callee: StackValue, args: list[Any], result: Any) -> None:
    """After a call that may have begun a walk."""
    name = called_name(callee)
    is_backwards = callee.value is reversed or name == "__reversed__"
    if is_backwards:
        recorder.state(_Known).backwards[id(result)] = result
    if is_backwards or name == "__iter__" or any(callee.value is each for each in _AT_ONCE):
        walked = args if callee.owner is None else [callee.owner, *args]
        _note_walks(recorder, result, walked, is_backwards=is_backwards)


def _note_walks(
    recorder: Recorder, iterator: Any, walked: Iterable[Any], *, is_backwards: bool
) -> None:
    known = recorder.state(_Known).walks
    walks = []
    for found in map(look_behind, walked):
        # Before torch 2.13 reversed() gives a tuple, of which an iterator is made later.
        walks += [each._replace(iterator=iterator) for each in known.get(id(found.variable), ())]
        kinds = (type_of(found) or object).__mro__
        is_deque = collections.deque in kinds
        if not is_deque and (not is_backwards or _CHANGING.isdisjoint(kinds)):
            continue
        table = table_of(look_behind(found.variable.realize()).variable)
        if containers.has_items(table):
            walks.append(_Walk(iterator, table, containers.items_of(table), list not in kinds))
        elif is_deque:
            recorder.refuse("a walk over this deque can't be followed")
    if walks:
        known[id(iterator)] = walks


_CHANGING = frozenset({list, dict, type({}.keys()), type({}.values()), type({}.items())})


def _compare(recorder: Recorder, walks: Iterable[_Walk]) -> None:
    """End the trace where an object has changed since its walk began."""
    for walk in walks:
        goes_on = walk.raises_at_end or _has_more(walk.iterator)
        if goes_on and containers.items_of(walk.walked) != walk.items:
            containers.end_change(recorder, walk.walked)


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


def _iterators_in(values: Iterable[Any], known: _Known) -> Iterator[Any]:
    """The iterators among values, and inside of others, such as `zip(it, b)`."""
    return _look_for_iterators(values, known, set(), inside=False)


def _look_for_iterators(
    values: Iterable[Any], known: _Known, seen: set[int], *, inside: bool
) -> Iterator[Any]:
    values = [each for each in values if isinstance(each, VariableTracker)]
    _realize(values)
    for each in values:
        found = look_behind(each)
        variable = found.variable
        if id(variable) in seen or found.is_waiting:
            continue
        is_iterator = id(variable) in known.walks or _is_iterator(variable)
        if not is_iterator and not inside:
            continue
        seen.add(id(variable))
        if is_iterator:
            yield variable
        for held in vars(variable).values():
            parts = held if isinstance(held, (list, tuple)) else (held,)
            yield from _look_for_iterators(parts, known, seen, inside=True)


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


def _is_endless(operand: Any) -> bool:
    # Dynamo's place in an itertools.count. Asked by getattr(), a value that Dynamo has put aside
    # would come in here.
    return "advance_count" in vars(look_behind(operand).variable)


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
