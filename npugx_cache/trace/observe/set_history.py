"""Records how the sets of one trace came about, and in which order they were walked.

Dynamo models a set as a dict. For a set from outside the trace, the dict has the order of the set.
For a set that traced code makes, the dict has the elements as they were added, which is not the
order in which Python walks a set. So when the trace walks a set, we put its elements in the order
that eager has, and note the walk, because the order becomes a condition.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from npugx_cache.conditions import set_order
from npugx_cache.portable import encode
from npugx_cache.trace.observe import observation, torch_guards
from npugx_cache.trace.observe.observation import Observation, Question
from npugx_cache.trace.stack_value import look_behind, table_of

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from npugx_cache.portable import Plain

_GROWING = frozenset({"add", "update", "__ior__"})
_CHANGING = frozenset(
    {
        *("__init__", "intersection_update", "difference_update", "symmetric_difference_update"),
        *("__iand__", "__isub__", "__ixor__"),
    }
)
_REMOVING = frozenset({"discard", "remove", "pop"})
_OF_ONE_ELEMENT = _REMOVING | {"add"}
METHODS = frozenset(
    {
        *(*set_order.OPERATIONS, *_GROWING, *_CHANGING, *_REMOVING, "clear", "isdisjoint"),
        *("issubset", "issuperset", "__len__", "__contains__", "__hash__", "__eq__", "__ne__"),
        *("__lt__", "__le__", "__gt__", "__ge__", "__new__", "__getattribute__"),
    }
)
"""Methods of a set whose answers do not depend on its order, and that are followed here."""


class Leaf(NamedTuple):
    """A set that existed before the trace.

    Either `source` leads to the set, or the set is the constant with the index `place` in `code`.
    """

    value: Any
    source: Any = None
    code: types.CodeType | None = None
    place: int = 0


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk over a set of two or more elements.

    `made` tells how the set came about, as in `conditions/set_order`, but with positions in
    `leaves` instead of nodes. If Python's order is not known, `made` is None and `order` is empty.
    Walks over sets that came about in the same way have one `key`, and are equal.
    """

    key: str
    made: Plain | None = field(compare=False)
    order: list[Plain] = field(compare=False)
    leaves: list[Leaf] = field(compare=False)

    def may_differ_here(self) -> bool:
        """Whether a later call of this process may walk an equal set in another order."""
        nodes = set_order.nodes_in([self.made, []]) if self.made is not None else ()
        return self.made is None or any(self.leaves[node].code is None for node in nodes)


@dataclass(kw_only=True)
class _State:
    """How the set of one of Dynamo's variables came about.

    If `turn` is None, `made` tells how, or is None if nobody knows. Otherwise the set was filled
    one by one: first the keys in `turn`, then the keys that only `variable.items` has.
    """

    variable: Any
    made: Plain | None = None
    turn: list[Any] | None = None


@dataclass
class Sets:
    """The sets that existed before one trace (`leaves`), and how each set came about.

    Only hooks use this, while the trace runs. A walk over a set is an observation of its own.
    """

    leaves: list[Leaf] = field(default_factory=list)
    calls: bool = False
    """Whether a function of Python's own runs that may walk what it was given."""
    flipped: str | None = None
    """The key of a walk that this trace makes in the opposite order, on purpose."""
    _states: dict[int, _State] = field(default_factory=dict)
    _collected: list[Observation] | None = None
    _collector: Any = None

    def note_set(self, variable: Any, made: Plain | None, turn: list[Any] | None = None) -> None:
        self._states[id(variable)] = _State(variable=variable, made=made, turn=turn)

    def note_earlier_set(self, variable: Any, leaf: Leaf) -> None:
        """Know a set that was there before the trace, unless it is known already."""
        if id(variable) not in self._states:
            self.note_set(variable, ["node", len(self.leaves)])
            self.leaves.append(leaf)

    def how(self, variable: Any) -> Plain | None:
        """How a set came about, in the form of `Walk.made`; None if nobody knows."""
        state = self._states.get(id(variable))
        if state is None and not variable.items and variable.source is None:
            self.note_set(variable, None, [])  # new, and nothing was added yet
            state = self._states[id(variable)]
        if state is None or state.turn is None:
            return state and state.made
        if variable.python_type() not in (set, frozenset):  # a class of user code
            return None
        turn = self._turn(state)
        try:
            elements = [encode(key.vt.as_python_constant()) for key in turn]
        except Exception:  # noqa: BLE001 - an element is no constant, or has no portable form
            return None
        return ["filled", variable.python_type().__name__, elements]

    @staticmethod
    def _turn(state: _State) -> list[Any]:
        turn = state.turn or []
        return [*turn, *(key for key in state.variable.items if key not in turn)]

    def note_walk(self, variable: Any) -> Plain | None:
        """Note a walk, and put the elements in Python's order.

        Returns how the set came about, or None if that is not known or if nothing was noted.
        """
        if variable is None or len(variable.items) < 2:
            return None
        with self.inside(None):
            made = self.how(variable)
            order = self._order_elements(variable, made)
        if order is None:
            self._note(Walk(f"unknown {id(variable)}", None, [], self.leaves))
            return None
        self._note(Walk(repr(made), made, order, self.leaves))
        return made

    def _note(self, walk: Walk) -> None:
        place = observation.place_of_the_trace()
        self.note([Observation(Question.SET_ORDER, None, walk, place)])

    def note(self, walks: Iterable[Observation]) -> None:
        recorder = observation.current()
        if self._collected is not None:
            self._collected.extend(walks)
        elif recorder is not None:
            for each in walks:
                recorder.note(each.question, each.owner, each.argument, each.where)

    @contextlib.contextmanager
    def collect(self, tx: Any) -> Iterator[list[Observation]]:
        """Note no walks of this code inside, but give them to the caller, who notes them later."""
        before = self._collected, self._collector
        walks: list[Observation] = []
        self._collected, self._collector = walks, tx
        try:
            yield walks
        except BaseException:
            self._collected, self._collector = before
            self.note(walks)
            raise
        self._collected, self._collector = before

    def inside(self, tx: Any, *, walks: bool = False) -> AbstractContextManager[None]:
        """Inside, this code runs; `walks`: a function of Python's own, which may walk a set."""
        if not walks and not self.calls and self._collected is None:
            return _AS_BEFORE  # each call comes by here
        return self._inside(tx, walks)

    @contextlib.contextmanager
    def _inside(self, tx: Any, walks: bool) -> Iterator[None]:
        before = self.calls, self._collected, self._collector
        self.calls = walks
        if tx is not None and tx is not self._collector:  # code that a text's maker calls
            self._collected = self._collector = None
        try:
            yield
        finally:
            self.calls, self._collected, self._collector = before

    def _order_elements(self, variable: Any, made: Plain | None) -> list[Plain] | None:
        if made is None:
            return None
        try:
            order = set_order.order(made, [leaf.value for leaf in self.leaves])
            keys = {repr(encode(key.vt.as_python_constant())): key for key in variable.items}
        except Exception:  # noqa: BLE001 - as in how()
            return None
        if sorted(keys) != sorted(map(repr, order)):
            return None
        state = self._states[id(variable)]
        if state.turn is not None:
            state.turn = self._turn(state)
        if repr(made) == self.flipped:
            order = order[::-1]
        items = {keys[repr(each)]: variable.items[keys[repr(each)]] for each in order}
        variable.items.clear()
        variable.items.update(items)
        return order

    # --- methods of sets

    def method(self, variable: Any, name: str, args: list[Any], call: Callable[[], Any]) -> Any:
        before = self.how(variable)
        others = [self.operand(arg) for arg in args if name not in _OF_ONE_ELEMENT]
        count = len(variable.items)
        result = call()
        if name in set_order.OPERATIONS:
            if is_plain(result) and result is not variable:
                self.note_set(result, _call(name, before, *others))
        elif name == "clear":
            self.note_set(variable, None, [])
        elif name in _REMOVING:
            if len(variable.items) < count:
                self._without(variable, before, args[0] if args else result)
        elif name in _GROWING:
            # An update that adds nothing may make room all the same, and change the order.
            if len(variable.items) > count or name != "add":
                self._note_growth(variable, name, before, others, args)
        elif name in _CHANGING:
            known = name in ("intersection_update", "__iand__")
            self.note_set(variable, _call("intersection", before, *others) if known else None)
        return result

    def trace_pop(self, variable: Any, tx: Any) -> Any:
        """Trace `set.pop`, which removes the first element in the order of Python."""
        self.note_walk(variable)
        key = next(iter(variable.items))
        variable.should_reconstruct_all = True
        tx.output.side_effects.mutation(variable)
        del variable.items[key]
        return key.vt

    def _note_growth(
        self,
        variable: Any,
        name: str,
        before: Plain | None,
        others: list[Plain | None],
        args: list[Any],
    ) -> None:
        if name != "add" and not all(map(is_added_one_by_one, args)):
            own = before is not None and before[0] in ("filled", "call") and len(args) == 1
            self.note_set(variable, _call("update", before, *others) if own else None)
        elif (state := self._states.get(id(variable))) is None or state.turn is None:
            self.note_set(variable, None)

    def _without(self, variable: Any, before: Plain | None, element: Any) -> None:
        try:
            gone = encode(element.as_python_constant())
        except Exception:  # noqa: BLE001 - as in how()
            before = None
        if before is None:
            self.note_set(variable, None)
        elif before[0] == "without":
            self.note_set(variable, ["without", before[1], [*before[2], gone]])
        else:
            self.note_set(variable, ["without", before, [gone]])

    def operand(self, arg: Any) -> Plain | None:
        """How an argument of a method of a set came about, in the form of `Walk.made`, or None."""
        if (given := set_of(arg)) is not None:
            return self.how(given)
        arg = arg.realize()
        try:
            if arg.python_type() is dict:
                torch_guards.guard_keys(arg)
                return ["dict", [encode(key.vt.as_python_constant()) for key in arg.items]]
            return ["list", [encode(each) for each in arg.as_python_constant()]]
        except Exception:  # noqa: BLE001 - as in how()
            return None


_AS_BEFORE = contextlib.nullcontext()


def _call(name: str, *operands: Plain | None) -> Plain | None:
    return None if None in operands else ["call", name, *operands]


def set_of(variable: Any) -> Any:
    """The variable of a set or frozenset, also behind an object of a class of users, or None."""
    found = look_behind(variable)
    if found.is_waiting:
        if not isinstance(found.value, (set, frozenset)):
            return None
        found = look_behind(variable.realize())
    both = found.variable, table_of(found.variable)
    return next((each for each in both if is_plain(each)), None)


def is_plain(variable: Any) -> bool:
    """Whether a variable stands for a set or a frozenset, and not for a kind of set with an order.

    Subclasses count, because since torch 2.15 the variables for set classes of users are derived
    from these.
    """
    kind: Any = type(variable)
    return _is_kind_of_set(kind)


@functools.cache
def _is_kind_of_set(cls: Any) -> bool:
    kinds = [kind.__name__ for kind in cls.__mro__]
    return not _SETS.isdisjoint(kinds) and _IN_ORDER.isdisjoint(kinds)


_SETS = frozenset({"SetVariable", "FrozensetVariable"})
_IN_ORDER = frozenset({"OrderedSetVariable", "DictKeySetVariable"})


def is_added_one_by_one(arg: Any) -> bool:
    """Whether a set adds the elements of this argument one by one.

    From a set or a dict it makes room for all elements first, which may give another order.
    """
    try:
        kind = arg.realize().python_type()
        return not issubclass(kind, (set, frozenset)) and kind is not dict
    except Exception:  # noqa: BLE001 - some variables have no type
        return False
