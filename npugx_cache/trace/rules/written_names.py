"""Rules about names that the traced code sets in a module or a class, and then reads.

Several ways lead to such a name: a global, an attribute of the module, an import, an instance, a
derived class, the `__dict__`. Dynamo keeps what was set for some of these ways, and reads what was
there before the call on the others. What the code reads after a write must be what it has written.
Importing this module loads the compiler.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from npugx_cache.trace.stack_value import (
    CONSTANTS,
    StackValue,
    classes_of,
    constant_of,
    look_behind,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npugx_cache.trace.observe.observation import Recorder


class _Written(dict[tuple[int, str], tuple[object, Any]]):
    """What the trace has set: by the `id` of a namespace and the name, the namespace and the value.

    The namespace of a module is its dict, which is that of the globals of its functions. A class is
    a namespace itself. The value is a variable, or None for a name that is deleted.
    """


class _TakenDicts(dict[int, object]):
    """The namespaces whose dict the traced code has taken as a value, by `id`."""


def note_write(recorder: Recorder, owner: Any, name: str, value: Any) -> None:
    """Before an attribute is set or deleted."""
    place = look_behind(owner).value
    if isinstance(place, type) and name.startswith("__") and name.endswith("__"):
        recorder.refuse(f"the special method {name} of {place.__qualname__} is set inside")
    if isinstance(place, types.FunctionType) and name in _OF_FUNCTIONS:
        recorder.refuse(f"{name} of the function {place.__qualname__} is set inside")
    if isinstance(place, types.ModuleType):
        note_global_write(recorder, vars(place), name, value)
    elif isinstance(place, type):
        _note(recorder, place, name, value)


_OF_FUNCTIONS = frozenset({"__code__", "__defaults__", "__kwdefaults__", "__wrapped__"})


def note_global_write(recorder: Recorder, table: dict[str, Any], name: str, value: Any) -> None:
    """Before a global is set or deleted, or the attribute of a module that has these globals."""
    _note(recorder, table, name, value)


def _note(recorder: Recorder, namespace: object, name: str, value: Any) -> None:
    recorder.state(_Written)[id(namespace), name] = namespace, value
    _refuse_taken(recorder, namespace)


def note_dict(recorder: Recorder, owner: Any) -> None:
    """Before the `__dict__` of a value is taken."""
    place = look_behind(owner).value
    if isinstance(place, types.ModuleType):
        place = vars(place)
    elif not isinstance(place, type):
        return
    recorder.state(_TakenDicts)[id(place)] = place
    _refuse_taken(recorder, place)


def _refuse_taken(recorder: Recorder, namespace: object) -> None:
    is_written = any(key == id(namespace) for key, _ in recorder.state(_Written))
    if is_written and id(namespace) in recorder.state(_TakenDicts):
        recorder.refuse("a name is set in a module or a class whose __dict__ is used as well")


def look_at_global(recorder: Recorder, table: dict[str, Any], name: str, result: Any) -> None:
    """After a global is read."""
    if written := recorder.state(_Written):
        _compare(recorder, written, (table,), name, result)


def look_at_attribute(recorder: Recorder, owner: Any, name: str, result: Any) -> None:
    """After an attribute is read, or asked for: `result` is None where nothing was read."""
    if written := recorder.state(_Written):
        _compare(recorder, written, _namespaces(look_behind(owner)), name, result)


def look_at_question(recorder: Recorder, owner: Any, name: str) -> None:
    """Before `hasattr` asks. Of a module Dynamo knows what the code has set."""
    if not isinstance(look_behind(owner).value, types.ModuleType):
        look_at_attribute(recorder, owner, name, None)


def look_at_slot(recorder: Recorder, tx: Any, slot: Any, owner: Any) -> None:
    """Before the `__get__` of a slot reads it: Dynamo gives what was there before the call."""
    member = look_behind(slot).value
    if not isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType):
        return
    found = look_behind(owner.realize())
    if tx.output.side_effects.has_pending_mutation_of_attr(found.variable, member.__name__):
        recorder.refuse(f"{member.__qualname__} is set inside, and then read by its __get__")


def _namespaces(owner: StackValue) -> Iterable[object]:
    """Where an attribute of a value is looked for, besides in the value itself."""
    if isinstance(owner.value, types.ModuleType):
        return (vars(owner.value),)
    return classes_of(owner)


def _compare(
    recorder: Recorder, written: _Written, namespaces: Iterable[object], name: str, result: Any
) -> None:
    for each in namespaces:
        if (found := written.get((id(each), name))) is None:
            continue
        if found[1] is None or result is None or not _is_same(found[1], result):
            what = f"{_name_of(each)}.{name}"
            recorder.refuse(f"{what} is set inside, and then read or asked for in another way")
        return


def _name_of(namespace: object) -> object:
    if isinstance(namespace, type):
        return namespace.__qualname__
    return namespace.get("__name__") if isinstance(namespace, dict) else None


def _is_same(value: Any, other: Any) -> bool:
    first, second = look_behind(value), look_behind(other)
    if first.variable is second.variable:
        return True
    before, now = constant_of(first), constant_of(second)  # what was there before has a guard
    is_plain = type(before) in CONSTANTS and type(now) is type(before)
    return is_plain and repr(before) == repr(now)  # 0.0 is no -0.0


def refuse_changed_dicts(recorder: Recorder, effects: Any) -> None:
    """At the end of a trace: refuse a change of a module's dict, through whatever leads to it."""
    changed = [
        key for key, variable in effects.id_to_variable.items() if effects.is_modified(variable)
    ]
    if changed and not _module_dicts().isdisjoint(changed):
        recorder.refuse("the __dict__ of a module is changed inside")


def _module_dicts() -> set[int]:
    return {
        id(vars(each)) for each in list(sys.modules.values()) if isinstance(each, types.ModuleType)
    }
