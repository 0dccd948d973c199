"""Facts about dicts: which keys a dict has, in which order, and which key it lacks.

Dynamo guards the keys of a dict that code walks. It does not where Python's own functions walk the
dict, as `frozenset(settings)` does, nor that a key is absent where the code catches the KeyError.
Importing this module loads the compiler.
"""

from __future__ import annotations

import collections
import operator
import types
from typing import TYPE_CHECKING, Any, NoReturn

from npugx_cache.trace.observe import objects, torch_guards, unkept_calls
from npugx_cache.trace.stack_value import StackValue, called_name, look_behind, table_of, type_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npugx_cache.trace.observe.observation import Recorder


def note_entry(recorder: Recorder, value: object) -> None:
    """When a value comes in: torch's guards don't see the order of an OrderedDict."""
    objects.note_ordered(recorder, value)


def note_call(tx: Any, callee: StackValue, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Before a call of what is not written in Python."""
    if callee.owner is not None and callee.name == "copy":
        _note_keys([callee.owner])
    if called_name(callee) == "move_to_end":
        _keep_moves(tx, callee, args)
    if callee.value is operator.getitem and len(args) == 2:
        _note_absence(tx, *args)
    elif callee.owner is not None and callee.name == "__getitem__" and len(args) == 1:
        _note_absence(tx, callee.owner, *args)
    if _walks(callee):
        _note_keys((*args, *kwargs.values()))


def _keep_moves(tx: Any, callee: StackValue, args: list[Any]) -> None:
    """Let Dynamo write the whole dict: otherwise it writes new items, and none that moved."""
    bound = callee.owner if callee.owner is not None else vars(callee.variable).get("obj")
    is_bound = bound is not None and not isinstance(look_behind(bound).value, type)
    changed = bound if is_bound else next(iter(args), None)
    if changed is None:
        return
    changed = changed.realize()
    changed = table_of((vars(changed).get("objvar") or changed).realize())  # of super()
    if hasattr(changed, "should_reconstruct_all"):
        changed.should_reconstruct_all = True
        tx.output.side_effects.mutation(changed)


def _walks(callee: StackValue) -> bool:
    """Whether a function or a method of Python's own may walk its arguments."""
    function = callee.value
    kind, name = _method_of(callee)
    if kind is not None:
        return issubclass(kind, _CONTAINERS) and name not in OF_ITEMS
    if isinstance(function, (types.BuiltinFunctionType, type)):
        is_of_python = function.__module__ in ("builtins", "_operator", "collections")
        return is_of_python and function not in WITHOUT_WALKS
    return False


def _method_of(callee: StackValue) -> tuple[type | None, str | None]:
    """The class and the name of a method that is about to be called."""
    if callee.owner is not None:
        owner = look_behind(callee.owner)
        kind = owner.value if isinstance(owner.value, type) else type_of(owner)
        return kind, callee.name
    method = callee.value
    kind = getattr(method, "__objclass__", None)
    if kind is None and isinstance(method, types.BuiltinFunctionType):  # such as dict.fromkeys
        kind = method.__self__ if isinstance(method.__self__, type) else None
    return (kind, method.__name__) if isinstance(kind, type) else (None, None)


_CONTAINERS = (str, list, tuple, dict, set, frozenset, collections.deque)
OF_ITEMS = frozenset(
    {
        *("append", "appendleft", "insert", "remove", "index", "count", "add", "discard"),
        *("get", "pop", "setdefault", "__contains__", "__getitem__", "__setitem__", "__delitem__"),
    }
)
"""Methods of containers that take one item and walk none."""

WITHOUT_WALKS = frozenset(
    {
        *(len, isinstance, issubclass, getattr, hasattr, setattr, delattr, callable, type, id),
        *(bool, super, object, vars, operator.getitem, operator.setitem, operator.delitem),
        *(operator.contains, operator.is_, operator.is_not, operator.not_, operator.truth),
    }
)
"""Functions that ask an argument for no more than one item, one attribute, its type or its size."""


def note_operands(tx: Any, operands: tuple[Any, ...], asked: tuple[tuple[str, ...], ...]) -> None:
    """Before an instruction that walks an operand or takes an item, as `[*settings]` does."""
    if len(operands) == 2 and "__getitem__" in asked[0]:
        _note_absence(tx, *operands)
    pairs = zip(operands, asked, strict=True)
    _note_keys(operand for operand, names in pairs if not _WALKS.isdisjoint(names))


_WALKS = frozenset({"__iter__", "keys"})


def _note_keys(values: Iterable[Any]) -> None:
    for each in values:
        found = look_behind(each)
        if found.is_atomic or (found.is_waiting and not isinstance(found.value, dict)):
            continue
        torch_guards.guard_keys(each.realize())


def _note_absence(tx: Any, container: Any, key: Any) -> None:
    """That a key is not there: the code may catch the KeyError."""
    found = look_behind(container)
    if found.is_waiting and not isinstance(found.value, dict):
        return
    table = table_of(container.realize())
    if hasattr(table, "install_dict_contains_guard") and table.source:
        torch_guards.guard_absent_key(table, tx, key.realize())


def has_items(variable: Any) -> bool:
    return hasattr(type(variable), "view_items_vt") or "items" in vars(variable)


def items_of(variable: Any) -> list[int]:
    """The ids of the items that a list, a dict or a view of a dict holds, in order."""
    view = getattr(variable, "view_items_vt", None)
    if view is None:
        return list(map(id, variable.items))
    if variable.python_type() is _PAIRS:  # Dynamo makes new pairs each time
        return [id(each) for pair in view for each in pair.items]
    return list(map(id, view))


_PAIRS: Any = type({}.items())


def end_change(recorder: Recorder, variable: Any) -> NoReturn:
    """End the trace, because a container changes while it is walked."""
    kind = variable.python_type().__name__
    reason = f"a {kind} that changes while it is walked is traced as if it did not"
    recorder.refuse(reason)
    raise unkept_calls.NotKept(reason)
