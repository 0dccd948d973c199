"""Notes what Dynamo reads of dicts, classes and objects without a guard.

Each of these reads was seen to give a wrong result after a change (`tests/soundness/rows`):

- the order of an OrderedDict;
- `isinstance`, `issubclass` and `callable`: classes are edited, and registered with others;
- whether objects with an `__eq__` of their own are one key;
- whether a tensor is a view of another, and what a function marked `assume_constant_result` gives.

Importing this module loads the compiler.
"""

from __future__ import annotations

import ast
from abc import ABCMeta
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, is_typeddict

import torch
from torch._dynamo.variables import user_defined
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew
from torch._guards import TracingContext

from npugx_cache.backend import graph_calls
from npugx_cache.conditions import source_facts
from npugx_cache.portable import NotPortable, is_covered_class, ordered_keys
from npugx_cache.trace.observe import builtin_answers, observation
from npugx_cache.trace.observe.observation import Question

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder


def refuse_unwatched(reason: str) -> None:
    """Note that the trace needs a hook that is missing."""
    recorder = observation.current()
    if recorder is not None:
        recorder.refuse(reason, Question.UNWATCHED)


# --- dicts


def note_ordered(recorder: Recorder, value: object) -> None:
    """Torch's own guards don't see when the order of an OrderedDict changes."""
    if isinstance(value, OrderedDict) and len(value) > 1:
        pairs = zip(ordered_keys(value), dict.keys(value), strict=True)
        # By identity: the `==` of a key may be the user's, or a tensor's.
        is_moved = any(walked is not counted for walked, counted in pairs)
        recorder.note(Question.KEY_ORDER, None, is_moved)


def refuse_object_dict(
    recorder: Recorder, variable: Any, obj: Any, name: str, *_: Any, **__: Any
) -> None:
    """Refuse to read the `__dict__` of an object that the trace did not make itself.

    `nn.Module` asks there for its own tables, whose names are always the same.
    """
    del variable
    if name == "__dict__" and obj.source and not _is_in_module():
        recorder.refuse("with this torch the attributes in a __dict__ have no guard")


def _is_in_module() -> bool:
    """Whether the code that is interpreted now is that of `nn.Module`."""
    stack = TracingContext.extract_stack()
    return bool(stack) and stack[-1].filename == torch.nn.modules.module.__file__


# --- classes and objects


def _both_covered(*classes: type) -> bool:
    return all(map(is_covered_class, classes))


def _note_subclass(recorder: Recorder, cls: type, others: Any) -> None:
    if isinstance(others, type):  # a class may have a member __args__, as types.UnionType does
        others = (others,)
    for other in others if isinstance(others, tuple) else getattr(others, "__args__", (others,)):
        if isinstance(other, tuple):
            _note_subclass(recorder, cls, other)
        elif not isinstance(other, type) or _both_covered(cls, other):
            continue
        elif source_facts.asks_for_classes(cls, other):
            registers = isinstance(other, ABCMeta)  # the place is needed for a refusal alone
            where = observation.place_of_the_trace() if registers else None
            recorder.note(Question.SUBCLASS, cls, other, where)
        else:
            what = f"isinstance with {other.__qualname__} runs code that is not traced"
            recorder.refuse(what)


def note_isinstance(recorder: Recorder, tx: Any, value: Any, classes: Any) -> None:
    asked = classes.as_python_constant()
    if is_typeddict(asked):  # Dynamo says False
        recorder.note(Question.SUBCLASS, value.python_type(), asked)
        try:
            isinstance(None, asked)
        except TypeError as error:
            builtin_answers.raise_as_python(recorder, tx, error)
    _note_subclass(recorder, value.python_type(), asked)


def note_issubclass(recorder: Recorder, cls: Any, classes: Any) -> None:
    if cls.is_python_constant() and isinstance(cls.as_python_constant(), type):
        _note_subclass(recorder, cls.as_python_constant(), classes.as_python_constant())


def note_callable(recorder: Recorder, value: Any) -> None:
    value = value.realize()
    if isinstance(value, user_defined.UserDefinedObjectVariable):
        recorder.note(Question.NAME, value.python_type(), "__call__")


_IDENTICAL: Any = object.__eq__


def note_equality(recorder: Recorder, self: Any, other: Any) -> None:
    """Refuse keys and elements with an `__eq__` of their own, which some torch does not ask."""
    kind = user_defined.UserDefinedObjectVariable
    self, other = (getattr(each, "vt", each) for each in (self, other))  # of a key, or of its value
    if not (isinstance(self, kind) and isinstance(other, kind)):
        return
    own = any(type(each.value).__eq__ is not _IDENTICAL for each in (self, other))
    if own and self.value is not other.value:
        what = f"{type(self.value).__qualname__} in a dict or a set is compared by identity"
        recorder.refuse(what)


@observation.around
def noting_constant(
    recorder: Recorder,
    original: Callable[..., Any],
    tx: Any,
    function: Any,
    name: str,
    args: list[Any],
    kwargs: dict[str, Any],
) -> Any:
    """What a function gives that is marked `assume_constant_result`, and is called again later."""
    changed = _sees_changes(function, tx.output)
    answer = original(tx, function, name, args, kwargs)
    try:
        arguments = arguments_of(args, kwargs)
        asked = source_facts.asked_again(function, arguments)
        found = answer.as_python_constant()
        if changed or not is_fixed(found) or source_facts.answer_text(found) != asked:
            raise NotPortable(arguments)  # noqa: TRY301
    except Exception:  # noqa: BLE001 - an argument or the answer is no constant, or not portable
        recorder.refuse(f"{name}() is assumed to give a constant")
    else:
        recorder.note(Question.CONSTANT, function, (arguments, asked))
    return answer


def _sees_changes(function: Any, output: Any) -> bool:
    """Whether eager may have changed by now what the function reads: an object, or a mode.

    Dynamo changes objects when the graph has run, and a graph enters some modes.
    """
    entered = 0
    for node in output.graph.nodes:
        entered += graph_calls.is_entered(node.target) - graph_calls.is_left(node.target)
    if entered > 0 or torch.is_grad_enabled():
        return True
    effects, new = output.side_effects, (AttributeMutationNew, ValueMutationNew)
    existing = (each for each in effects.id_to_variable.values() if each.mutation_type)
    existing = (each for each in existing if not isinstance(each.mutation_type, new))
    changed = list(filter(effects.is_modified, existing))
    if any(type(each) is not user_defined.UserDefinedObjectVariable for each in changed):
        return True  # a dict, a cell, a global, ...
    return bool(changed) and source_facts.reaches(function, [each.value for each in changed])


def arguments_of(args: list[Any], kwargs: dict[str, Any]) -> str:
    """The arguments as a literal, "" for none. Raises anything if they can't be given again."""
    given = tuple(each.as_python_constant() for each in args)
    named = {key: each.as_python_constant() for key, each in kwargs.items()}
    text = repr((given, named))
    if ast.literal_eval(text) != (given, named) or not is_fixed((given, *named.values())):
        raise NotPortable(text)
    return text if given or named else ""


def is_fixed(value: object) -> bool:
    """Whether nobody can change the value: of a list, Dynamo gives the function a copy."""
    if isinstance(value, tuple):
        return all(map(is_fixed, value))
    return value is None or type(value) in (bool, int, float, complex, str, bytes)


# --- how the table puts them in place


def empty(_: Any) -> dict[Any, Any]:
    """Replace a cache of Dynamo's, which may hold bound methods of a trace without hooks."""
    return {}
