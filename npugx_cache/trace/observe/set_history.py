"""How the sets of one trace came about, and in which order they were walked.

Dynamo models a set as a dict. Where the set was there before, the dict has its order; where traced
code makes one, elements stand as they were added, which is not how Python walks it. So a set that
is walked is put in the order that it has in eager, and noted. Checked on torch 2.13.
"""

from __future__ import annotations

import contextlib
import types
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from npugx_cache.conditions import set_order
from npugx_cache.portable import encode
from npugx_cache.trace.observe import observation
from npugx_cache.trace.observe.observation import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
_SEQUENCES = (list, tuple, range, str, types.GeneratorType)


class Leaf(NamedTuple):
    """A set that was there before: the value of a source, or a constant of code."""

    value: Any
    source: Any = None
    code: types.CodeType | None = None
    place: int = 0


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk over two or more elements. `made` is None where Python's own order isn't known.

    As in `guards.orders`, but for the nodes: they are places among `leaves`. Walks over sets that
    came about in the same way have one `key` and are equal.
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
    """How one of Dynamo's sets came about: `made`, or filled in this `turn` with one after another.

    Elements that `turn` lacks were added after it.
    """

    variable: Any
    made: Plain | None = None
    turn: list[Any] | None = None


@dataclass
class Sets:
    """How the sets of one trace came about. Hooks alone look at it, while the trace runs."""

    leaves: list[Leaf] = field(default_factory=list)
    paused: bool = False
    flipped: str | None = None
    """The key of the walk over a set of two that is walked the other way round."""
    _states: dict[int, _State] = field(default_factory=dict)

    def made(self, variable: Any, made: Plain | None, turn: list[Any] | None = None) -> None:
        self._states[id(variable)] = _State(variable=variable, made=made, turn=turn)

    def found(self, variable: Any, leaf: Leaf) -> None:
        self.made(variable, ["node", len(self.leaves)])
        self.leaves.append(leaf)

    def cloned(self, variable: Any, clone: Any) -> None:
        if state := self._states.get(id(variable)):
            self._states[id(clone)] = replace(state, variable=clone)

    def how(self, variable: Any) -> Plain | None:
        """How the set was made, or None."""
        state = self._states.get(id(variable))
        if state is None or state.turn is None:
            return state and state.made
        if variable.python_type() not in (set, frozenset):  # a class of user code
            return None
        turn = self._turn(state)
        try:
            elements = [encode(key.vt.as_python_constant()) for key in turn]
        except Exception:  # noqa: BLE001 - no constant, or none with a portable form
            return None
        return ["filled", variable.python_type().__name__, elements]

    @staticmethod
    def _turn(state: _State) -> list[Any]:
        turn = state.turn or []
        return [*turn, *(key for key in state.variable.items if key not in turn)]

    def walked(self, variable: Any) -> Plain | None:
        """Note a walk, and put the elements in Python's order. How the set was made, if known."""
        if self.paused or not is_plain(variable) or len(variable.items) < 2:
            return None
        with self.pause():
            made = self.how(variable)
            order = self._ordered(variable, made)
        if order is None:
            self._note(Walk(f"unknown {id(variable)}", None, [], self.leaves))
            return None
        self._note(Walk(repr(made), made, order, self.leaves))
        return made

    def _note(self, walk: Walk) -> None:
        recorder = observation.current()
        if recorder is not None:
            recorder.note(Question.SET_ORDER, None, walk, observation.place_of_the_trace())

    def _ordered(self, variable: Any, made: Plain | None) -> list[Plain] | None:
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

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """What is walked inside does not depend on the order."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    # --- methods of sets

    def method(self, variable: Any, name: str, args: list[Any], call: Callable[[], Any]) -> Any:
        before = self.how(variable)
        others = [self._operand(arg) for arg in args if name not in _OF_ONE_ELEMENT]
        count = len(variable.items)
        result = call()
        if name in set_order.OPERATIONS:
            if is_plain(result) and result is not variable:
                self.made(result, _call(name, before, *others))
        elif name == "clear":
            self.made(variable, None, [])
        elif name in _REMOVING:
            if len(variable.items) < count:
                self._without(variable, before, args[0] if args else result)
        elif name in _GROWING:
            if len(variable.items) > count:
                self._grown(variable, name, before, others, args)
        elif name in _CHANGING:
            known = name in ("intersection_update", "__iand__")
            self.made(variable, _call("intersection", before, *others) if known else None)
        return result

    def popped(self, variable: Any, tx: Any) -> Any:
        """`set.pop`, which takes the first element."""
        self.walked(variable)
        key = next(iter(variable.items))
        variable.should_reconstruct_all = True
        tx.output.side_effects.mutation(variable)
        del variable.items[key]
        return key.vt

    def _grown(
        self,
        variable: Any,
        name: str,
        before: Plain | None,
        others: list[Plain | None],
        args: list[Any],
    ) -> None:
        if name != "add" and not all(map(_is_sequence, args)):
            own = before is not None and before[0] in ("filled", "call") and len(args) == 1
            self.made(variable, _call("update", before, *others) if own else None)
        elif (state := self._states.get(id(variable))) is None or state.turn is None:
            self.made(variable, None)

    def _without(self, variable: Any, before: Plain | None, element: Any) -> None:
        try:
            gone = encode(element.as_python_constant())
        except Exception:  # noqa: BLE001 - as in how()
            before = None
        if before is None:
            self.made(variable, None)
        elif before[0] == "without":
            self.made(variable, ["without", before[1], [*before[2], gone]])
        else:
            self.made(variable, ["without", before, [gone]])

    def _operand(self, arg: Any) -> Plain | None:
        arg = arg.realize()
        if is_plain(arg):
            return self.how(arg)
        try:
            return ["list", [encode(each) for each in arg.as_python_constant()]]
        except Exception:  # noqa: BLE001 - as in how()
            return None


def _call(name: str, *operands: Plain | None) -> Plain | None:
    return None if None in operands else ["call", name, *operands]


def is_plain(variable: Any) -> bool:
    """Whether it stands for a set or a frozenset, not for something that has an order.

    Since torch 2.15 the sets of user code are derived from them; before it only those are that have
    an order.
    """
    kinds = [kind.__name__ for kind in type(variable).__mro__]
    return not _SETS.isdisjoint(kinds) and _IN_ORDER.isdisjoint(kinds)


_SETS = frozenset({"SetVariable", "FrozensetVariable"})
_IN_ORDER = frozenset({"OrderedSetVariable", "DictKeySetVariable"})


def _is_sequence(arg: Any) -> bool:
    """Whether its elements go into a set one by one, which makes no room for them beforehand."""
    try:
        return issubclass(arg.realize().python_type(), _SEQUENCES)
    except Exception:  # noqa: BLE001 - some variables have no type
        return False
