"""Rules about calls: Dynamo interprets the callee, or the arguments alone decide what it gives."""

from __future__ import annotations

import enum
import functools
import inspect
import logging
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._library.fake_class_registry import FakeScriptObject
from torch._ops import HigherOrderOperator
from torch.nn.modules.lazy import LazyModuleMixin

from npugx_cache.conditions.process import ANSWERS
from npugx_cache.portable import is_covered_class
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.private import meshes, process_groups
from npugx_cache.trace.observe import min_max, numpy_arrays
from npugx_cache.trace.rules import by_value, operators, pure, texts
from npugx_cache.trace.stack_value import (
    CONSTANTS,
    NONE,
    StackValue,
    called_name,
    classes_of,
    code_made_here,
    codes_of,
    constant_of,
    is_constant,
    is_context,
    is_of_graph,
    look_behind,
    table_of,
    type_of,
)

if TYPE_CHECKING:
    import types
    from collections.abc import Collection, Iterator

_POLYFILLS = "torch/_dynamo/polyfills/"
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Call(NamedTuple):
    """A call that Dynamo has answered.

    `started` is the code that Dynamo interpreted during the call. `caller` is the code that calls,
    and `module` the name of its module.
    """

    callee: StackValue
    args: list[Any]
    result: Any
    started: Collection[types.CodeType]
    caller: types.CodeType | None
    module: object

    @property
    def is_of_library(self) -> bool:
        """Whether Python's own code calls, or torch's."""
        return isinstance(self.module, str) and is_covered_module(self.module)


def refusal_before(found: StackValue, args: list[Any]) -> str | None:
    """Why a trace must not come to this call, which Dynamo would run for real; or None.

    A lazy module draws its weights in its first call. Dynamo lets it do so during the trace, and
    sets the generators of random numbers back afterwards, so that the next draw is the same again.
    Of a class Dynamo makes an object for itself, whose `__del__` runs when the trace drops it.
    Before torch 2.13 Dynamo interprets the module `re`, which looks patterns up in a dict of the
    process. `args` are all operands, also those that are named.
    """
    callee = found.value
    if callee is not None and callee is _PATTERN:
        return "which patterns re has compiled before has no guard"
    name = called_name(found)
    if _substitutes(found) and not all(map(_is_plain, args)):
        return "a function of re calls one of the user's"
    for made in (callee, *(_made_by(found, args) if name in _MAKERS else ())):
        if isinstance(made, type) and hasattr(made, "__del__"):
            return f"an object of {made.__qualname__} is made inside, and its __del__ is not traced"
    if name == "numpy" and (reason := _obstacle_of_array(found.owner, args)) is not None:
        return reason
    if not isinstance(callee, LazyModuleMixin) or not hasattr(callee, "_initialize_hook"):
        return None
    return f"{type(callee).__name__} makes its weights in its first call, not in a graph"


def _obstacle_of_array(owner: Any, args: list[Any]) -> str | None:
    """Why the tensor whose `numpy` is called has no array in eager, where Dynamo goes on."""
    tensor, *more = args if owner is None else (owner, *args)
    proxy = vars(look_behind(tensor).variable).get("proxy")
    value = proxy.node.meta.get("example_value") if proxy is not None else None
    if not isinstance(value, torch.Tensor):
        return None
    is_forced = any(constant_of(look_behind(each)) is not False for each in more)
    return numpy_arrays.obstacle_of_tensor(value, is_forced=is_forced)


def _substitutes(found: StackValue) -> bool:
    """Whether it is a function of `re` or a method of a pattern that may be given a function."""
    if found.owner is None or found.name not in ("sub", "subn"):
        return found.value is re.sub or found.value is re.subn
    return type_of(look_behind(found.owner)) is re.Pattern


_PATTERN = getattr(re, "_compile", None)


def _made_by(found: StackValue, args: list[Any]) -> Iterator[Any]:
    """The classes of which such a method may make an object."""
    yield getattr(found.value, "__self__", None)
    for each in (found.owner, *args[:1]):
        if each is not None:
            yield look_behind(each).value


_MAKERS = frozenset({"__new__", "_make", "fromkeys"})
"""Methods that make an object of the class that they are given, or are called on."""


def obstacle(call: Call) -> str | None:
    """Why what Dynamo gave for a call is no answer that a stored graph may hold, or None."""
    value = call.callee.value
    while isinstance(value, functools.partial):
        value = value.func
    name = getattr(value, "__name__", call.callee.name)
    if value is hash or (name == "__hash__" and not codes_of(value)):
        # A dict or a set asks, and shows no hash.
        is_asked = call.caller is not None and call.caller.co_name == "__hash__"
        return None if is_asked else HASH
    if pure.is_for_libraries(value) and call.is_of_library:
        return None
    if value is id:
        return "id() gives another number in another process"
    if value in texts.MAKERS or (name in (*texts.METHODS, "format") and not codes_of(value)):
        owner = [call.callee.owner] if call.callee.owner is not None else []
        if (reason := texts.obstacle([*owner, *call.args])) is not None:
            return reason
    if _has_rule(call, value):
        return None
    return f"npugx_cache has no rule for {_name(call.callee)}, whose answer torch makes a constant"


HASH = "hash() gives another number in another process"


def _has_rule(call: Call, value: Any) -> bool:
    callee = call.callee
    if code_made_here(callee) is not None:
        return True  # the traced code makes the function, so there is nothing but its code to run
    if callee.owner is not None and _is_method_answered(call):
        return True
    if value is sorted and _is_empty(call.args[0]):  # no key is asked for
        return True
    return value is not NONE and _is_function_answered(call, value)


def _is_empty(variable: Any) -> bool:
    items: object = vars(look_behind(variable).variable).get("items")
    return items == []


def _is_function_answered(call: Call, value: Any) -> bool:
    if _is_interpreted(value, call.started):
        return True
    if pure.is_pure(value):
        return by_value.obstacle_of_call(value, call.args) is None and _asks_no_user(call, value)
    if pure.is_pure_of_constants(value) and all(map(_is_plain, call.args)):
        return True
    if isinstance(value, type) and _is_made(value, call):
        return True
    if isinstance(value, torch.nn.Module) and call.started:
        return True  # Dynamo begins with its `forward`, or with what runs the hooks around that
    if question_of(value) is not None:
        return True  # the observer notes the question, and a condition asks again
    if _is_of_torch(value) and (_tells_nothing(call.result) or _gives_what_code_gave(value, call)):
        return True
    runs = inspect.getattr_static(type(value), "__call__", None)
    return _is_interpreted(runs, call.started)


def question_of(function: Any) -> str | None:
    """The question about the process that a function answers, by whatever name it is called."""
    name = getattr(function, "__name__", None)
    is_library = _is_of_torch(function) or getattr(function, "__module__", None) == "sys"
    return name if is_library and isinstance(name, str) and name in ANSWERS else None


def _asks_no_user(call: Call, function: Any) -> bool:
    """Whether a function of Python's own asks no user code that Dynamo did not interpret.

    `math.sqrt(thing)` asks `thing.__float__`, and Dynamo may call the function for real.
    """
    if by_value.asks_kinds(function):
        return True
    names, values = by_value.asked_by(function, call.args)
    return operators.obstacle_of_values(values, names, call.started) is None


def _is_method_answered(call: Call) -> bool:
    kind = type_of(look_behind(call.callee.owner))
    is_of_torch = kind is not None and _is_of_torch(kind)
    if is_of_torch and _tells_nothing(call.result):
        return True  # such as a wait for a stream, which Dynamo puts into the graph
    if kind is not None and _is_left_out(kind, call.callee.name or ""):
        return True
    return _is_method_known(call.callee, call.args, call.started)


def _is_left_out(kind: type, name: str) -> bool:
    """Whether the user has told torch to leave calls of this method of a logger out.

    Only a method of the class: the key says which functions are left out, and not of which logger.
    """
    if not issubclass(kind, logging.Logger):
        return False
    method = inspect.getattr_static(kind, name, None)
    return any(method is each for each in torch._dynamo.config.ignore_logger_methods)


def _tells_nothing(result: Any) -> bool:
    """Whether a result is None, a context that Dynamo enters and leaves in the graph, or parts.

    Parts are those that the graph computes, and others of which the same holds.
    """
    found = look_behind(result)
    if constant_of(found) is None or is_context(found):
        return True
    items = vars(table_of(found.variable)).get("items")
    if not isinstance(items, (list, tuple)):
        return False
    return all(is_of_graph(each) or _tells_nothing(each) for each in items)


def _gives_what_code_gave(operator: Any, call: Call) -> bool:
    """Whether an operator ran functions, which Dynamo interpreted, and gives what they gave."""
    is_running = isinstance(operator, HigherOrderOperator) and bool(call.started)
    return is_running and not is_constant(call.result)


def _is_plain(variable: Any) -> bool:
    """Whether a value is a tensor, a plain constant, or a container of such values."""
    found = look_behind(variable)
    kind = type_of(found)
    if is_of_graph(variable) or kind in CONSTANTS:
        return True
    items = vars(found.variable).get("items")
    return isinstance(items, (list, tuple)) and all(map(_is_plain, items))


def _is_interpreted(callee: Any, started: Collection[types.CodeType]) -> bool:
    codes = codes_of(callee)
    if any(code in started for code in codes):
        return True
    first = next(iter(started), None)
    if first is not None and (_POLYFILLS in first.co_filename or first is min_max.CODE):
        return True  # Dynamo interprets Python code of torch's or of ours that does the same
    return bool(codes) and bool(codes[0].co_flags & _GENERATOR)


def _is_made(cls: type, call: Call) -> bool:
    """Whether the call of a class gave an object of it, whose methods Dynamo interprets."""
    kind = type_of(look_behind(call.result))
    if kind is None or not issubclass(kind, cls) or not cls.__flags__ & _MADE_BY_PYTHON:
        return False
    if issubclass(cls, enum.Enum):
        return True  # the call looks a member up that was there before
    return all(_is_maker_known(cls, name, call) for name in ("__new__", "__init__"))


def _is_maker_known(cls: type, name: str, call: Call) -> bool:
    """Whether a method that makes objects was interpreted, or only keeps what it is given."""
    owner = next(each for each in cls.__mro__ if name in vars(each))
    maker = vars(owner)[name]
    if is_covered_class(owner) or not codes_of(maker) or _is_interpreted(maker, call.started):
        return True
    # Before torch 2.12 Dynamo makes a named tuple itself, and reads the defaults without a guard.
    space = getattr(getattr(maker, "__func__", maker), "__globals__", {})
    is_plain = str(space.get("__name__")).startswith("namedtuple_")
    return is_plain and len(call.args) == len(getattr(cls, "_fields", ()))


_MADE_BY_PYTHON = 1 << 9


def _is_of_torch(value: Any) -> bool:
    """Whether torch defines a value, or torch_npu, under whichever name that was loaded."""
    module = getattr(value, "__module__", None)
    if not isinstance(module, str) or module.partition(".")[0] in sys.stdlib_module_names:
        return False
    return is_covered_module(module)


def _is_method_known(
    callee: StackValue, args: list[Any], started: Collection[types.CodeType]
) -> bool:
    name, classes = callee.name or "", classes_of(look_behind(callee.owner))
    if name == "__exit__" and not classes:
        return True  # of a context that is in the graph
    if torch.Tensor in classes and _is_of_tensor(callee.owner, name):
        return True
    if _is_of_group(callee.owner, name):
        return True
    holder = next((each for each in classes if name in vars(each)), None)
    if holder is None:
        return False
    held = vars(holder)[name]
    if _is_interpreted(held, started):
        return True
    if holder in _PURE_OF_CONSTANTS:
        return all(map(_is_plain, args))
    if pure.is_pure(held) or holder in pure.PLAIN_TYPES:
        asked = [callee.owner, *args]
        if by_value.obstacle_of_method(holder, name, asked) is not None:
            return False
        if by_value.keeps(holder, name) or (name == "sort" and _is_empty(callee.owner)):
            return True
        names = by_value.BY_CALLS if name == "sort" else by_value.BY_METHODS
        return operators.obstacle_of_values(by_value.parts(args), names, started) is None
    return name in ("__init__", "__exit__") and is_covered_class(holder)


_PURE_OF_CONSTANTS = (re.Pattern, re.Match, type(torch.__version__))
"""Types whose methods ask the object and the arguments alone, if the arguments are constants."""


def _is_of_tensor(owner: Any, name: str) -> bool:
    is_made_here = look_behind(owner).source is None
    return name in pure.TENSOR_METHODS or (name in _OF_DATA and is_made_here)


_OF_DATA = frozenset({"item", "tolist"})
"""Methods of a tensor that give constants only where the trace made the tensor from constants."""


def _is_of_group(owner: Any, name: str) -> bool:
    """Whether a question is about a group of processes or a mesh of such groups.

    Both are conditions, with their ranks, and so is which of them this process is.
    """
    # Dynamo is not asked for the constant, because it would guard all of an owner that is a dict.
    value = look_behind(owner).value
    value = getattr(value, "real_obj", None) if isinstance(value, FakeScriptObject) else value
    return meshes.is_mesh(value) or (process_groups.is_group(value) and name in ("size", "rank"))


def _name(callee: StackValue) -> str:
    """A callee in words."""
    if callee.owner is not None and callee.name:
        kind = type_of(look_behind(callee.owner))
        return f"the method {callee.name} of {kind.__qualname__ if kind else 'an object'}"
    value = callee.value
    if isinstance(value, functools.partial):
        value = value.func
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    module = getattr(getattr(value, "__objclass__", value), "__module__", None)
    if isinstance(name, str):
        return f"{module}.{name}()" if isinstance(module, str) else f"{name}()"
    if value is NONE and is_context(callee):
        return "a context as a decorator inside"
    kind = type(callee.variable if value is NONE else value)
    return f"a call of a {kind.__module__}.{kind.__qualname__}"
