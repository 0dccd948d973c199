"""Rules about sets: how each set came about, and where Python walks it.

The order of a set becomes a condition where the code walks the set. Python's own functions walk
what they are given, unless they are listed here: a function that is not known walks. In which order
Python walks a set follows from how the set came about, which `observe.set_history` keeps.
Importing this module loads the compiler.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import polyfills

from npugx_cache.trace.observe import observation, set_texts
from npugx_cache.trace.observe.set_history import (
    METHODS,
    Leaf,
    Sets,
    is_added_one_by_one,
    is_plain,
    set_of,
)
from npugx_cache.trace.rules import containers, pure, texts
from npugx_cache.trace.stack_value import (
    NONE,
    StackValue,
    classes_of,
    codes_of,
    constant_of,
    look_behind,
    type_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npugx_cache.trace.observe.observation import Recorder

_SETS = (set, frozenset)


def note_entry(recorder: Recorder, source: Any, value: object, variable: Any) -> None:
    """When a value comes in: a set that was there before the trace."""
    if type(value) in _SETS and is_plain(variable):
        recorder.state(Sets).note_earlier_set(variable, Leaf(value, source))


def note_start(recorder: Recorder) -> None:
    """When code begins to run: the function of Python's own that runs it walks nothing there."""
    recorder.state(Sets).calls = False


# --- instructions


def watch(name: str, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Stand for the function of Dynamo's that runs an instruction, if it is one about sets."""
    rule = _INSTRUCTIONS.get(name)
    if rule is None:
        return original

    @functools.wraps(original)
    def run(tx: Any, instruction: Any) -> Any:
        recorder = observation.current()
        if recorder is None or (name == "LOAD_CONST" and type(instruction.argval) is not frozenset):
            return original(tx, instruction)
        if _is_method_of_sets(tx):
            return original(tx, instruction)
        sets = recorder.state(Sets)
        with sets.inside(tx):
            return rule(sets, tx, instruction, partial(original, tx, instruction))

    return run


def _is_method_of_sets(tx: Any) -> bool:
    """Whether Dynamo interprets Python code of its own for a method of a set.

    How the result came about is noted as a whole. The code may call more of the kind, such as what
    stands for `iter()`.
    """
    code = getattr(tx, "f_code", None)
    while code is not None and _POLYFILLS in code.co_filename:
        if code.co_qualname.startswith("set_"):
            around = vars(polyfills).get(code.co_qualname.partition(".")[0])
            if getattr(around, "__code__", _NO_CODE).co_filename == code.co_filename:
                return True
        tx = getattr(tx, "parent", None)
        code = getattr(tx, "f_code", None)
    return False


_POLYFILLS = str(Path(polyfills.__file__).parent)
_NO_CODE = (lambda: None).__code__


def _build(sets: Sets, tx: Any, _: Any, run: Callable[[], Any]) -> Any:
    result = run()
    sets.note_set(tx.stack[-1], None, [])
    return result


def _change(name: str) -> Callable[..., Any]:
    def rule(sets: Sets, tx: Any, instruction: Any, run: Callable[[], Any]) -> Any:
        changed = set_of(tx.stack[-1 - instruction.arg])
        return run() if changed is None else sets.method(changed, name, [tx.stack[-1]], run)

    return rule


def _load(sets: Sets, tx: Any, instruction: Any, run: Callable[[], Any]) -> Any:
    result, value = run(), instruction.argval
    if is_plain(tx.stack[-1]):
        places = (i for i, each in enumerate(tx.f_code.co_consts) if each is value)
        if (place := next(places, None)) is not None:
            sets.note_earlier_set(tx.stack[-1], Leaf(value, None, tx.f_code, place))
    return result


def _walk(*depths: int) -> Callable[..., Any]:
    def rule(sets: Sets, tx: Any, _: Any, run: Callable[[], Any]) -> Any:
        for depth in depths:
            sets.note_walk(set_of(tx.stack[-depth]))
        return run()

    return rule


def _store(sets: Sets, tx: Any, _: Any, run: Callable[[], Any]) -> Any:
    """See `items[1:] = some_set`."""
    if type_of(look_behind(tx.stack[-1])) is slice:
        sets.note_walk(set_of(tx.stack[-3]))
    return run()


def _make_text(sets: Sets, tx: Any, _: Any, run: Callable[[], Any]) -> Any:
    """Make an f-string, or a part of one."""
    with sets.collect(tx) as walks:
        result = run()
    tx.stack[-1] = set_texts.defer_walks(sets, tx.stack[-1], walks)
    return result


_INSTRUCTIONS = {
    "BUILD_SET": _build,
    "SET_ADD": _change("add"),
    "SET_UPDATE": _change("update"),
    "LOAD_CONST": _load,
    "STORE_SUBSCR": _store,
    "STORE_SLICE": _walk(4),
    "CALL_FUNCTION_EX": _walk(1, 2),
    **dict.fromkeys(
        ("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE", "BUILD_STRING"),
        _make_text,
    ),
    **dict.fromkeys(
        ("GET_ITER", "GET_YIELD_FROM_ITER", "UNPACK_SEQUENCE", "UNPACK_EX", "LIST_EXTEND"), _walk(1)
    ),
}


# --- calls


def call(
    recorder: Recorder,
    tx: Any,
    callee: StackValue,
    args: list[Any],
    kwargs: dict[str, Any],
    run: Callable[[], Any],
) -> Any:
    """Run a call, and note what it does to sets."""
    if _is_method_of_sets(tx):
        return run()
    sets = recorder.state(Sets)
    with sets.inside(tx):
        if _meets_no_set(callee, args, kwargs):
            return run()
        found = _method_of_set(callee, args) or _operator(callee, args)
        if found is not None:
            return _run_method(sets, tx, *found, run)
        if isinstance(callee.value, type) and issubclass(callee.value, _SETS):
            return _make(sets, callee.value, args, run)
        is_operator = id(callee.value) in _OPERATORS and any(map(_is_view, args))
        if is_operator or _is_view(callee.owner):
            return _operate(sets, args, run)
        if not walks(callee, args, kwargs):
            return run()
        is_of_dict = _is_of_dict(callee)
        walked = [*args, *(() if is_of_dict else kwargs.values())]
        if is_of_dict:  # a pair may be a set
            walked += (each for arg in args for each in _items(arg))
        return _run_walk(sets, tx, walked, _makes_text(callee), run)


def _meets_no_set(callee: StackValue, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call gets plain constants and values of the graph alone, and makes no object.

    What a partial or a bound method holds passes by here when the function inside is called.
    """
    function = callee.value
    if type(function) in _IN_C:
        if not isinstance(getattr(function, "__self__", None), _NO_OBJECT):
            return False
    elif type(function) is not types.FunctionType and callee.owner is None:
        return False
    holder = vars(callee.variable).get("obj")
    given = (callee.owner, holder, *args, *kwargs.values())
    return all(each is None or look_behind(each).is_atomic for each in given)


def _run_walk(
    sets: Sets, tx: Any, walked: Iterable[Any], makes_text: bool, run: Callable[[], Any]
) -> Any:
    with sets.collect(tx) as walks:
        for each in walked:
            sets.note_walk(set_of(each))
        with sets.inside(tx, walks=True):
            result = run()
    if makes_text:
        return set_texts.defer_walks(sets, result, walks)
    sets.note(walks)
    return result


def _method_of_set(callee: StackValue, args: list[Any]) -> tuple[Any, str, list[Any]] | None:
    """The set, the name and the arguments where a method of Python's own sets is called."""
    if callee.owner is None:
        if getattr(callee.value, "__objclass__", None) not in _SETS:
            return None
        owner, args = _own(callee, args)
        if owner is None:
            return None
        name = callee.value.__name__
    else:
        owner, name = callee.owner, callee.name or ""
        found = look_behind(owner)
        if _holder(found, name) not in _SETS:
            return None
        if isinstance(found.value, type):
            owner, args = (args[0], args[1:]) if args else (owner, args)
        owner = vars(found.variable).get("objvar") or owner  # super()
    changed = set_of(owner)
    return None if changed is None else (changed, name, args)


def _own(callee: StackValue, args: list[Any]) -> tuple[Any, list[Any]]:
    """The object of which a method of Python's own is called, and the arguments."""
    owner = vars(callee.variable).get("obj")
    return (owner, args) if owner is not None or not args else (args[0], args[1:])


def _holder(found: StackValue, name: str) -> type | None:
    """The class in which Python finds a name."""
    return next((each for each in classes_of(found) if name in vars(each)), None)


_OPERATORS = {
    id(getattr(operator, name)): name.strip("_")
    for name in ("or_", "and_", "xor", "sub", "ior", "iand", "ixor", "isub")
}


def _operator(callee: StackValue, args: list[Any]) -> tuple[Any, str, list[Any]] | None:
    """The same for an operator between two sets whose classes leave it to Python's own sets."""
    name = _OPERATORS.get(id(callee.value))
    if name is None or len(args) != 2:
        return None
    first, second = map(set_of, args)
    if first is None or second is None:
        return None
    left, right = map(look_behind, args)
    plain = name.removeprefix("i")
    if _holder(left, f"__{name}__") is None:  # a frozenset has no operators in place
        name = plain
    if _holder(left, f"__{name}__") in _SETS and _holder(right, f"__r{plain}__") in _SETS:
        return first, f"__{name}__", [second]
    return None


def _operate(sets: Sets, args: list[Any], run: Callable[[], Any]) -> Any:
    """Run another operator: of keys of a dict, Dynamo makes a set in another way than Python."""
    result = run()
    if is_plain(result) and not any(result is each for each in args):
        sets.note_set(result, None)
    return result


def _is_view(variable: Any) -> bool:
    return variable is not None and type_of(look_behind(variable)) in _VIEWS


_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


def _run_method(
    sets: Sets, tx: Any, changed: Any, name: str, args: list[Any], run: Callable[[], Any]
) -> Any:
    if name == "pop" and changed.items and not args and issubclass(changed.python_type(), set):
        return sets.method(changed, name, args, lambda: sets.trace_pop(changed, tx))
    if name in METHODS:
        return sets.method(changed, name, args, run)
    return _run_walk(sets, tx, [changed], name in texts.METHODS, run)


def _make(sets: Sets, cls: type, args: list[Any], run: Callable[[], Any]) -> Any:
    """Call a class of sets; of one of users nothing is known, because its code may run."""
    is_new = cls is set or not args or set_of(args[0]) is None
    turn: list[Any] | None = [] if not args or is_added_one_by_one(args[0]) else None
    how = sets.operand(args[0]) if cls in _SETS and turn is None else None
    result = run()
    made = set_of(result)
    if cls not in _SETS:
        sets.note_set(made, None)
    elif is_new or made is not set_of(args[0]):  # of a frozenset that is one, Python makes no other
        sets.note_set(made, how and ["call", cls.__name__, how], turn)
    return result


# --- walks


def walks(callee: StackValue, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call may walk an argument, because Python's own code runs and nothing is known."""
    function = callee.value
    if callee.owner is not None:
        return _method_walks(callee.owner, callee.name or "", args)
    if isinstance(function, type):
        if issubclass(function, _WITHOUT_WALKS):
            return False
        makers = (getattr(function, name) for name in ("__new__", "__init__"))
        own = [each for each in makers if each not in (object.__new__, object.__init__)]
        return any(map(_is_in_c, own))
    if isinstance(function, types.FunctionType):  # Dynamo answers these, and interprets the others
        return pure.is_pure(function) or pure.is_pure_of_constants(function)
    if function is NONE or isinstance(function, (torch.nn.Module, functools.partial)):
        return False
    if id(function) in _BY_VALUE:  # only equal elements can change places
        return "key" in kwargs and constant_of(look_behind(kwargs["key"])) is not None
    if id(function) in _WITHOUT_ORDER:
        return function is operator.setitem and not _takes_one(args)
    holder = getattr(function, "__objclass__", None)
    if holder is object:  # such as object.__setattr__
        return False
    is_given_all = holder is None or _takes_all(function.__name__, _own(callee, args)[1])
    return is_given_all and _is_in_c(function)


def _method_walks(owner: Any, name: str, args: list[Any]) -> bool:
    """The same for a method that Dynamo has not read yet."""
    holder = _holder(look_behind(owner), name)
    if holder is None or holder is object or issubclass(holder, _WITHOUT_WALKS):
        return False
    return _takes_all(name, args) and _is_in_c(vars(holder)[name])


def _takes_all(name: str, args: list[Any]) -> bool:
    """Whether a method of a container takes the items of an argument, and not the argument."""
    return name not in containers.OF_ITEMS or (name == "__setitem__" and not _takes_one(args))


def _takes_one(args: list[Any]) -> bool:
    return not any(type_of(look_behind(each)) is slice for each in args)


def _is_in_c(function: Any) -> bool:
    if type(function) in _IN_C:
        return True
    caller = inspect.getattr_static(type(function), "__call__", None)
    return not codes_of(function) and not codes_of(caller)


_IN_C = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.ClassMethodDescriptorType, types.MethodWrapperType),
)
_NO_OBJECT = (type(None), types.ModuleType, type)
"""What a function in C is bound to that is bound to no object."""
_BY_VALUE = frozenset(map(id, (sorted, min, max)))
_WITHOUT_ORDER = frozenset(
    id(each)
    for each in (
        *containers.WITHOUT_WALKS,
        *(hash, next, print, operator.eq, operator.ne, operator.lt, operator.le, operator.gt),
        *(operator.ge, operator.or_, operator.and_, operator.xor, operator.sub),
        *(operator.ior, operator.iand, operator.ixor, operator.isub),
    )
)
"""Functions whose answer for a set does not depend on its order; a new set has no known order.

By id, because the `==` of a function may be the user's.
"""
_WITHOUT_WALKS = (BaseException, functools.partial, types.MethodType, super, bool, type)
"""Classes that keep what they are given, or ask its type alone."""


def _is_of_dict(callee: StackValue) -> bool:
    if callee.owner is not None:
        kind = type_of(look_behind(callee.owner))
    else:
        kind = getattr(callee.value, "__objclass__", callee.value)
    return isinstance(kind, type) and issubclass(kind, dict)


def _items(variable: Any) -> list[Any]:
    """The items of a list or a tuple that the traced code made."""
    items = vars(look_behind(variable).variable).get("items")
    return list(items) if isinstance(items, (list, tuple)) else []


def _makes_text(callee: StackValue) -> bool:
    function, name = callee.value, callee.name or getattr(callee.value, "__name__", None)
    if any(function is each for each in (*texts.MAKERS, operator.mod, operator.add)):
        return True
    return name in (*texts.METHODS, "format", "join", "__mod__")
