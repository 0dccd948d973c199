"""Rules about what Python's C code walks, where Dynamo takes other steps than Python.

Python asks what it walks for an iterator once, takes one item at a time, and does something with
the item before it takes the next. Code of the user's that runs meanwhile sees what was done.

- What a method of a set, a view of a dict or `dict.fromkeys()` is given, Dynamo walks while it
  traces: it runs an `__iter__` of the user's for real, and takes the items away from the call.
- `itertools.cycle()`, `itertools.accumulate()`, `a, *b = value` and `items[:] = value` ask an
  object of the user's for an iterator too often or too early.
- The `update()` of a dict or set takes all items before it changes anything, so that a generator
  does not see what it has added, and nothing is added where the generator raises.
- A generator into which an exception is thrown before it has started is at its end in Python alone.
- An iterator without items that a generator asks by `next()` raises RuntimeError in Python alone.

Importing this module loads the compiler.
"""

from __future__ import annotations

import itertools
import types
from typing import TYPE_CHECKING, Any

from torch._dynamo import exc
from torch._dynamo.variables import VariableTracker

from npugx_cache.portable import is_covered_class
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.trace.stack_value import called_name, look_behind, type_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npugx_cache.trace.stack_value import StackValue

_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.items()))
_WALKING: dict[type, frozenset[str] | None] = {
    set: None,
    frozenset: None,
    dict: frozenset({"fromkeys", "update", "__ior__", "__or__"}),
    **dict.fromkeys(_VIEWS),
}
"""Types with the methods that walk their arguments; None: all but those that take an element."""
_TAKING_AN_ELEMENT = frozenset({"add", "discard", "remove", "__contains__", "__eq__", "__ne__"})
_AT_ONCE = (dict, set)
"""Types of which `update()` takes all items first."""
_ITERATORS: tuple[Any, ...] = (
    *(iter([]), iter(()), iter({}), iter(set()), iter(""), iter(b""), iter(range(0))),
    *(iter({}.values()), iter({}.items()), reversed([]), reversed({})),
)
_PLAIN_ITERATORS = frozenset(map(type, _ITERATORS))
"""Iterators that run no code of the user's."""
_JOINING = (zip, enumerate, itertools.chain, itertools.islice, itertools.repeat, itertools.count)
"""Iterators that run code of the user's only if an iterator inside does."""
_STARTS_BEFORE = 3
"""A generator that has not started stands at one of its first instructions."""


def obstacle_of_call(callee: StackValue, args: list[Any], kwargs: dict[str, Any]) -> str | None:
    """Why a trace must not come to this call, or None."""
    operands = [each for each in (*args, *kwargs.values()) if isinstance(each, VariableTracker)]
    name, holder = called_name(callee), _holder_of(callee)
    if name == "throw" and _has_not_started(callee.owner):
        return "an exception is thrown into a generator that has not started"
    if callee.value is itertools.cycle or callee.value is itertools.accumulate:
        made = callee.value.__name__
        return _of_own_walks(f"itertools.{made}()", operands)
    kind = next((each for each in _WALKING if each in holder.__mro__), None)
    if kind is None or name in _TAKING_AN_ELEMENT:
        return None
    names = _WALKING[kind]
    if names is not None and name not in names:
        return None
    return _of_own_walks(f"{kind.__name__}.{name}()", operands) or _of_update(kind, name, operands)


def obstacle_of_operands(instruction: Any, operands: Iterable[Any]) -> str | None:
    """The same of an instruction."""
    operands = [each for each in operands if isinstance(each, VariableTracker)]
    name = instruction.opname
    sets_slice = name == "STORE_SUBSCR" and type_of(look_behind(operands[-1])) is slice
    if sets_slice or name in ("UNPACK_EX", "STORE_SLICE"):
        return _of_own_walks("an assignment to several places", operands[:1])
    if name == "BINARY_OP":
        kinds = [type_of(look_behind(each)) for each in operands]
        if any(kind in (*_VIEWS, dict) for kind in kinds):
            return _of_own_walks("an operator of a dict", operands) or _of_update(
                dict, "update", operands
            )
    return None


def obstacle_of_error(name: str, operands: Iterable[Any], error: Exception, tx: Any) -> str | None:
    """Why an exception that a call or an instruction raised may be another in Python, or None."""
    if name.startswith("UNPACK_"):
        if any(_runs_code(look_behind(each)) for each in operands):
            return "an exception ends the unpacking of a generator, which Python leaves where it is"
    elif isinstance(error, exc.ObservedUserStopIteration):
        is_generator = bool(tx.f_code.co_flags & _GENERATOR)
        instruction = tx.current_instruction
        is_ended = instruction.opname in _ENDED_BY_ITERATOR
        if is_generator and not is_ended and instruction.exn_tab_entry is None:
            return "a generator asks an iterator without items for the next one"
    return None


_GENERATOR = 0x20  # inspect.CO_GENERATOR
_ENDED_BY_ITERATOR = frozenset({"FOR_ITER", "SEND", "YIELD_FROM"})
"""Instructions of `for` and `yield from`, which an iterator without items ends."""


def _holder_of(callee: StackValue) -> type:
    """The class whose method a call runs; `object` for other calls."""
    if callee.owner is not None:
        owner = look_behind(callee.owner)
        return owner.value if isinstance(owner.value, type) else type_of(owner) or object
    if isinstance(callee.value, types.BuiltinFunctionType):  # an object of the user's is not asked
        bound = callee.value.__self__
        return bound if isinstance(bound, type) else type(bound)
    if isinstance(callee.value, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return callee.value.__objclass__
    return object


def _of_own_walks(what: str, operands: Iterable[Any]) -> str | None:
    for each in map(look_behind, operands):
        kind = type_of(each)
        if kind is not None and _walks_itself(kind):
            return f"{what} walks a {kind.__qualname__}, whose own code torch runs otherwise"
    return None


def _walks_itself(kind: type) -> bool:
    """Whether objects of a class are walked by code of the user's."""
    if is_covered_class(kind):
        return False
    methods = [_method(kind, name) for name in ("__iter__", "__next__")]
    if methods[0] is None:
        methods.append(_method(kind, "__getitem__"))
    return any(isinstance(each, types.FunctionType) for each in methods)


def _method(kind: type, name: str) -> object:
    """A method as Python finds it for an operator, without code of a metaclass."""
    return next((vars(cls)[name] for cls in kind.__mro__ if name in vars(cls)), None)


def _of_update(kind: type, name: str, operands: Iterable[Any]) -> str | None:
    changes = name.endswith("update") or name == "__ior__"
    if kind in _AT_ONCE and changes and any(_runs_code(look_behind(each)) for each in operands):
        return f"{kind.__name__}.{name}() takes all items of a generator before it changes anything"
    return None


def _runs_code(found: StackValue) -> bool:
    """Whether a value is an iterator that runs code of the user's for each item."""
    kind = type_of(found)
    if found.is_waiting or kind is None or not hasattr(kind, "__next__"):
        return False
    if kind in _JOINING:
        return any(_runs_code(look_behind(each)) for each in _inside(found.variable))
    tracer = vars(found.variable).get("inline_tracer")
    module = tracer.f_globals.get("__name__") if tracer is not None else None
    is_of_library = isinstance(module, str) and is_covered_module(module)
    return not is_of_library and kind not in _PLAIN_ITERATORS


def _inside(variable: Any) -> Iterable[Any]:
    for held in vars(variable).values():
        parts = held if isinstance(held, (list, tuple)) else (held,)
        yield from (each for each in parts if isinstance(each, VariableTracker))


def _has_not_started(generator: Any) -> bool:
    if generator is None:
        return False
    tracer = vars(look_behind(generator).variable).get("inline_tracer")
    at = getattr(tracer, "instruction_pointer", None)
    return tracer is not None and (at is None or at <= _STARTS_BEFORE)
