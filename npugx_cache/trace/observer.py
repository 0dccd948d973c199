"""Watches a trace where Dynamo interprets user code, and refuses what no rule knows.

Dynamo runs user code instruction by instruction. So what the code reads, calls and asks passes a
few places of Dynamo's, whichever of Dynamo's functions answers: the table of instructions, the
calls of values, and the two builders by which values come in. `rules/` say what may pass there, in
terms of Python's instructions, types and callables. What no rule knows refuses the trace.

Importing this module loads the compiler.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import importlib
import operator
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import exc
from torch._dynamo.source import DictGetItemSource, GlobalSource
from torch._dynamo.variables import VariableTracker
from torch._guards import TracingContext

from npugx_cache import location
from npugx_cache.portable import is_covered_class, is_namespace
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.trace import tracing
from npugx_cache.trace.observe import (
    enumerations,
    numpy_arrays,
    numpy_numbers,
    observation,
    pure_calls,
    torch_guards,
    unkept_calls,
)
from npugx_cache.trace.observe.observation import Question
from npugx_cache.trace.observe.replacements import Replacements, dynamo_modules
from npugx_cache.trace.rules import (
    answers,
    attributes,
    cached_functions,
    calls,
    containers,
    copies,
    derived,
    instructions,
    iterators,
    kinds,
    module_calls,
    names,
    operators,
    sets,
    sorting,
    texts,
    values,
    walked_in_c,
    written_names,
)
from npugx_cache.trace.rules.instructions import Does
from npugx_cache.trace.rules.values import Entry
from npugx_cache.trace.stack_value import (
    CONSTANTS,
    NONE,
    StackValue,
    classes_of,
    constant_of,
    has_attribute,
    look_behind,
    type_of,
)

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Iterator

    from npugx_cache.trace.observe.observation import Recorder


class Seen:
    """What passed the places during one trace.

    `entries` are the values that came in, by their source. `started` is the code that Dynamo began
    to interpret, in order: a part of the list tells what ran during one instruction or call.

    `unread` are the values that an instruction or `getattr` read and that Dynamo has not looked at
    since, by their source, with the place in the user's code.

    Some functions of Dynamo's answer by another one that is a place as well. `call` and `reading`
    are what Dynamo answers now, so that one question passes once.
    """

    def __init__(self) -> None:
        self.entries: dict[Any, Entry] = {}
        self.unread: dict[Any, tuple[Any, Any]] = {}
        self.started: list[types.CodeType] = []
        self.call: tuple[Any, ...] = ()
        self.reading: tuple[Any, ...] = ()

    def enter(
        self, source: Any, value: Any, variable: Any, owner: StackValue | None = None
    ) -> None:
        if source not in self.entries:
            stack = TracingContext.extract_stack()
            self.entries[source] = Entry(value, variable, stack, owner)

    def read(self, found: StackValue) -> None:
        """Note a value that is read: that it is there may be all that the code depends on."""
        if found.is_waiting and found.source is not None and found.source not in self.unread:
            self.unread[found.source] = found.variable, TracingContext.extract_stack()

    def know(self, variable: Any) -> StackValue:
        """The value behind a variable; also where the variable has not kept what it was made of."""
        found = look_behind(variable)
        if found.value is NONE and found.source in self.entries:
            return found._replace(value=self.entries[found.source].value)
        return found

    def is_passed_on(self, *call: Any) -> bool:
        """Whether a class of Dynamo's gives the call that it got to its base class."""
        if not self.call or call[0] is not self.call[0]:
            return False
        if not all(map(operator.is_, call[1:3], self.call[1:])):
            return False
        args, before = call[3], self.call[3]
        same = map(operator.is_, reversed(args), reversed(before))
        return len(args) - len(before) in (0, 1) and all(same)  # a method has its object as well

    def is_read(self, function: object, tx: Any, args: Any) -> bool:
        """Whether Dynamo calls `getattr` for the instruction that reads an attribute."""
        if function is not getattr or not self.reading or len(args) != 2:
            return False
        frame, owner, name = self.reading
        return frame is tx and owner is args[0] and vars(args[1]).get("value") == name


# --- values come in


@observation.around
def _enter(recorder: Recorder, original: Callable[..., Any], build: Any, value: Any) -> Any:
    variable = original(build, value)
    found = look_behind(variable)
    names.note_class_of_tensor(recorder, value, build.source)
    if not found.is_computed:  # an iterator over tensors is a value as any other
        recorder.state(Seen).enter(build.source, value, variable)
        names.note_class(recorder, found)
        containers.note_entry(recorder, value)
        iterators.note_entry(recorder, value, variable)
        sets.note_entry(recorder, build.source, value, variable)
    return variable


@observation.around
def _enter_without_place(
    recorder: Recorder, original: Callable[..., Any], tx: Any, value: Any
) -> Any:
    variable = original(tx, value)
    if type(value) in CONSTANTS or isinstance(value, VariableTracker):
        return variable
    names.note_class(recorder, look_behind(variable))
    if not _is_known_by_itself(value):
        kind = type(value)
        recorder.refuse(
            f"an object of type {kind.__module__}.{kind.__qualname__} is read without a guard"
        )
    return variable


def _is_known_by_itself(value: object) -> bool:
    """Whether a value that no place leads to is held by conditions about what led to it.

    A constant is a part of the code or of a class that is compared. Classes and functions are
    compared where they are asked or interpreted. What a container holds comes by here again.
    """
    if type(value) in _OF_PARTS or isinstance(value, values.NAMED):
        return True
    if isinstance(value, enum.Enum):  # its members are a condition
        return True
    return is_covered_class(type(value)) or numpy_numbers.is_constant(value)


_OF_PARTS = frozenset((*CONSTANTS, list, tuple, dict, set, frozenset))


# --- calls


@observation.around
def _call(
    recorder: Recorder,
    original: Callable[..., Any],
    callee: Any,
    tx: Any,
    args: Any,
    kwargs: Any,
    *more: Any,
) -> Any:
    seen = recorder.state(Seen)
    if seen.is_passed_on(callee, tx, kwargs, args):
        return original(callee, tx, args, kwargs, *more)
    found = seen.know(callee)
    if found.value is super:  # asks nothing: what is read from it is looked at there
        return original(callee, tx, args, kwargs, *more)
    if seen.is_read(found.value, tx, args):
        seen.reading = ()
        return original(callee, tx, args, kwargs, *more)
    if isinstance(found.value, type) and issubclass(found.value, BaseException):
        # Before torch 2.12 Dynamo gives an exception of its own a text that is no variable.
        args = [
            each if isinstance(each, VariableTracker) else VariableTracker.build(tx, each)
            for each in args
        ]
    if (reason := derived.obstacle_of_call(found, args, has_named=bool(kwargs))) is not None:
        recorder.refuse(reason)
    before, seen.call = seen.call, (callee, tx, kwargs, args)
    answer = partial(original, callee, tx, args, kwargs, *more)
    try:
        return _look_at_call(recorder, found, tx, args, kwargs, answer)
    finally:
        seen.call = before


def _look_at_call(
    recorder: Recorder,
    callee: StackValue,
    tx: Any,
    args: list[Any],
    kwargs: dict[str, Any],
    answer: Callable[[], Any],
) -> Any:
    function = callee.value
    seen = recorder.state(Seen)
    started = seen.started
    reason = calls.refusal_before(
        callee, [*args, *kwargs.values()]
    ) or walked_in_c.obstacle_of_call(callee, args, kwargs)
    if reason is not None:
        recorder.refuse(reason)
        raise unkept_calls.NotKept(reason)
    if (asked := _answer(recorder, tx, function, args, kwargs)) is not None:
        return asked
    mark = len(started)
    kinds.note_call(recorder, tx, callee, args)
    containers.note_call(tx, callee, args, kwargs)
    run = _with_rules(recorder, tx, callee, args, kwargs, answer)
    if (name := _name_asked(function, args)) is None:
        result = run()
    else:
        result = _ask_for_name(recorder, tx, function, args, name, run)
    if result is None:
        return None
    found = look_behind(result)
    numpy_arrays.note_result(recorder, found.variable)
    if function is getattr and name is not None and not found.is_computed:
        seen.read(found)
        owner = look_behind(args[0])
        if len(args) == 2 or has_attribute(owner, name):
            _look_at_attribute(recorder, tx, owner, name, found)
    if _is_answer(function, found, result, args):
        call = calls.Call(
            callee=callee,
            args=[*args, *kwargs.values()],
            result=result,
            started=started[mark:],
            caller=getattr(tx, "f_code", None),
            module=getattr(tx, "f_globals", {}).get("__name__"),
        )
        if (reason := calls.obstacle(call)) is not None:
            recorder.refuse(reason)
        if (question := calls.question_of(function)) is not None:
            recorder.note(Question.ANSWER, question)
    names.note_class(recorder, found)
    return result


def _with_rules(
    recorder: Recorder,
    tx: Any,
    callee: StackValue,
    args: list[Any],
    kwargs: dict[str, Any],
    answer: Callable[[], Any],
) -> Callable[[], Any]:
    """The call with what rules do before and after it.

    Each is a frame of Python's for each call in the traced code, and a deep trace comes near to the
    recursion limit.
    """
    if isinstance(callee.value, torch.nn.Module):
        started = recorder.state(Seen).started
        answer = partial(module_calls.call, recorder, tx, callee, args, kwargs, started, answer)
    answer = partial(answers.call, recorder, tx, callee, args, kwargs, answer)
    run = partial(sets.call, recorder, tx, callee, args, kwargs, answer)
    run = partial(sorting.call, recorder, callee, args, kwargs, run)
    run = partial(iterators.call, recorder, tx, callee, args, kwargs, run)
    if cached_functions.function_of(callee) is not None:
        run = partial(cached_functions.call, recorder, tx, callee, args, kwargs, run)
    return run


def _answer(
    recorder: Recorder, tx: Any, function: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """The answer of ours to a call, as a value of the trace; None where Dynamo is to answer."""
    asked = pure_calls.answer(recorder, tx, function, args, kwargs)
    return copies.answer_id(recorder, tx, function, args) if asked is None else asked


def _name_asked(function: Any, args: list[Any]) -> str | None:
    """The name of an attribute that a builtin asks its first argument for."""
    if len(args) < 2 or not any(function is each for each in names.ASKING):
        return None
    name = constant_of(look_behind(args[1]))
    return name if isinstance(name, str) else None


def _ask_for_name(
    recorder: Recorder,
    tx: Any,
    function: Any,
    args: list[Any],
    name: str,
    run: Callable[[], Any],
) -> Any:
    """Run what asks a value for a name, and note what was asked and what the answer was."""
    owner = args[0]
    names.note_name(recorder, tx, owner, name)
    if name == "__dict__":
        written_names.note_dict(recorder, owner)
    if function is not getattr:
        if function is hasattr:
            names.note_question(tx, owner, name)
            written_names.look_at_question(recorder, owner, name)
        else:
            _refuse_write(recorder, owner, name, args[2] if len(args) > 2 else None)
        return run()
    if len(args) > 2:
        names.note_question(tx, owner, name)
        names.note_absence(tx, owner, name)
    try:
        result = run()
    except exc.ObservedAttributeError:
        names.note_absence(tx, owner, name)
        raise
    names.note_answer(recorder, tx, owner, name)
    if isinstance(result, VariableTracker):  # an instruction leaves what it reads on the stack
        written_names.look_at_attribute(recorder, owner, name, result)
    return result


def _is_answer(function: Any, found: StackValue, result: Any, args: Iterable[Any]) -> bool:
    """Whether Dynamo knows a result now: it is not computed later, and comes from no place.

    min() and max() give one of their arguments, and which one is the answer.
    """
    if found.is_of_graph:
        return False
    if function is min or function is max:
        return True
    return found.source is None and not any(result is each for each in args)


# --- instructions


def _watch(name: str, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Stand for the function of Dynamo's that runs one instruction."""
    does = instructions.DOES.get(name)
    original = sets.watch(name, original)
    if does is Does.MOVES:
        return original
    look: Callable[..., Any] = _LOOKS.get(does, _refuse_unknown)

    @functools.wraps(original)
    def run(tx: Any, instruction: Any) -> Any:
        recorder = observation.current()
        if recorder is None:
            return original(tx, instruction)
        return look(recorder, original, tx, instruction)

    return run


def _refuse_unknown(recorder: Recorder, original: Any, tx: Any, instruction: Any) -> Any:
    recorder.refuse(f"npugx_cache has no rule for the instruction {instruction.opname}")
    return original(tx, instruction)


def _start(recorder: Recorder, original: Any, tx: Any, instruction: Any) -> Any:
    recorder.state(Seen).started.append(tx.f_code)
    sets.note_start(recorder)
    return original(tx, instruction)


def _leave(recorder: Recorder, original: Any, tx: Any, instruction: Any) -> Any:
    if tx is tx.output.root_tx:
        iterators.refuse_unfinished(recorder)
    return original(tx, instruction)


def _read(recorder: Recorder, original: Any, tx: Any, instruction: Any) -> Any:
    seen = recorder.state(Seen)
    name, operation = instruction.argval, instruction.opname
    owner = tx.stack[-1] if tx.stack and operation in _OF_TOP else None
    mark = len(seen.started)
    run = partial(original, tx, instruction)
    if operation in _OF_SUPER:
        names.note_super(recorder, tx, tx.stack[-2:], name)
        written_names.look_at_attribute(recorder, tx.stack[-1], name, None)
    if owner is None:
        result = run()
    else:
        seen.reading = tx, owner, name
        try:
            result = _ask_for_name(recorder, tx, getattr, [owner], name, run)
        finally:
            seen.reading = ()
    if not tx.stack:
        return result
    top = tx.stack[-1 - _is_null_pushed(instruction)]
    found = look_behind(top)
    if owner is not None:
        written_names.look_at_attribute(recorder, owner, name, top)
    _look_at_global(recorder, tx, operation, name, top)
    if operation in _OF_NAME and name not in tx.f_globals:
        _read_builtin(seen, tx, name, top)
    elif owner is not None and not found.is_computed:
        is_interpreted = len(seen.started) > mark
        _look_at_attribute(recorder, tx, look_behind(owner), name, found, is_interpreted)
        if operation == "IMPORT_FROM":
            names.note_import(recorder, [found])
    elif operation == "IMPORT_NAME":
        modules = list(names.modules_imported(tx, found, name))
        names.note_import(recorder, modules)
        for each in modules:
            seen.enter(each.source, each.value, each.variable)
    seen.read(found)
    return result


def _look_at_global(recorder: Recorder, tx: Any, operation: str, name: str, top: Any) -> None:
    if operation in _OF_NAME:
        _refuse_other_module(recorder, tx)
        written_names.look_at_global(recorder, tx.f_globals, name, top)


def _refuse_other_module(recorder: Recorder, tx: Any) -> None:
    """Refuse to use the globals of an inlined function that are of no loaded module.

    Dynamo guards and sets them in the loaded module of that name, which may be another one.
    """
    space, name = tx.f_globals, tx.f_globals.get("__name__")
    if space is tx.output.global_scope or is_namespace(space) or not isinstance(name, str):
        return
    if not name.startswith("namedtuple_"):  # Dynamo finds the globals by their id
        what = f"the module of {tx.f_code.co_qualname} is not sys.modules[{name!r}]"
        recorder.refuse(f"{what}, whose globals torch would guard")


def _is_null_pushed(instruction: Any) -> bool:
    """Whether a NULL lies above the value: since Python 3.13, of a function that is called next."""
    is_flagged = instruction.opname in ("LOAD_ATTR", "LOAD_GLOBAL", "LOAD_SUPER_ATTR")
    return sys.version_info >= (3, 13) and is_flagged and bool(instruction.arg & 1)


_OF_NAME = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_OF_TOP = frozenset({"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"})
_OF_SUPER = frozenset({"LOAD_SUPER_ATTR"})  # since Python 3.12; Dynamo runs it as two others


def _write(recorder: Recorder, original: Any, tx: Any, instruction: Any) -> Any:
    if (name := instruction.opname) in ("STORE_ATTR", "DELETE_ATTR"):
        names.note_name(recorder, tx, tx.stack[-1], instruction.argval)
        value = tx.stack[-2] if name == "STORE_ATTR" else None
        _refuse_write(recorder, tx.stack[-1], instruction.argval, value)
    elif name in ("STORE_GLOBAL", "DELETE_GLOBAL"):
        _refuse_other_module(recorder, tx)
        value = tx.stack[-1] if name == "STORE_GLOBAL" else None
        written_names.note_global_write(recorder, tx.f_globals, instruction.argval, value)
    return _run_and_show(recorder, original, tx, instruction)


def _refuse_write(recorder: Recorder, owner: Any, name: str, value: Any) -> None:
    found = look_behind(owner.realize())
    if reason := attributes.obstacle_of_write(recorder, found, name, value):
        recorder.refuse(reason)
    written_names.note_write(recorder, owner, name, value)


def _look_at_attribute(
    recorder: Recorder,
    tx: Any,
    owner: StackValue,
    name: str,
    found: StackValue,
    is_interpreted: bool = False,
) -> None:
    """See what an attribute gave, whether an instruction or `getattr` read it."""
    seen = recorder.state(Seen)
    if name == "__hash__" and tx.f_code.co_name != name and not _is_of_library(tx):
        recorder.refuse(calls.HASH)
    _compare_with_tensor(recorder, tx, owner, name, found)
    names.note_class(recorder, found)
    _show(seen, found, owner)
    if not is_interpreted:
        _read_attribute(recorder, tx, owner, name, found)


def _is_of_library(tx: Any) -> bool:
    module = getattr(tx, "f_globals", {}).get("__name__")
    return isinstance(module, str) and is_covered_module(module)


def _read_builtin(seen: Seen, tx: Any, name: str, top: Any) -> None:
    """A name that somebody added to Python's builtins may be anything."""
    value = vars(builtins).get(name, NONE)
    if value is NONE or callable(value) or any(value is each for each in _SINGLETONS):
        return
    table: Any = GlobalSource(tx.output.name_of_builtins_dict_key_in_fglobals)
    seen.enter(DictGetItemSource(table, name), value, top)


_SINGLETONS = (None, True, False, Ellipsis, NotImplemented)


def _show(seen: Seen, found: StackValue, owner: StackValue | None = None) -> None:
    """A value on the stack that has a place, and that no builder made."""
    if found.source is None or found.is_waiting or found.owner is not None:
        return
    seen.enter(found.source, constant_of(found), found.variable, owner)


def _compare_with_tensor(
    recorder: Recorder, tx: Any, owner: StackValue, name: str, found: StackValue
) -> None:
    """Refuse what a tensor without data says otherwise than the tensor that it stands for."""
    if owner.source is None or torch.Tensor not in (classes := classes_of(owner)):
        return
    value = constant_of(found)
    if type(value) not in CONSTANTS:
        return
    if not is_covered_class(next((each for each in classes if name in vars(each)), object)):
        return  # a property of the user's, which this must not run
    try:
        there = getattr(tracing.value_at(tx, owner.source), name)
    except Exception:  # noqa: BLE001 - Dynamo has made the tensor, or code of the user's raises
        return
    if type(there) in CONSTANTS and there != value:
        place = tracing.source_name(owner.source)
        recorder.refuse(f"{place}.{name} is traced as {value!r}, and is {there!r}")


def _read_attribute(
    recorder: Recorder, tx: Any, owner: StackValue, name: str, found: StackValue
) -> None:
    """What Dynamo answers itself for an attribute of a value."""
    if found.source is not None or found.owner is not None:
        return
    if owner.source is None:
        # A member that `Mode(1)` or `Mode["A"]` gives has no place.
        if isinstance(owner.value, enum.Enum) and not enumerations.is_held(owner.value, name):
            recorder.refuse(f"the attribute {name} of {owner.value!s} is read without a guard")
        return
    if tx.output.side_effects.has_pending_mutation_of_attr(owner.variable, name):
        return
    source = tracing.inner(owner.source, name)
    recorder.state(Seen).enter(source, constant_of(found), found.variable, owner)


def _operate(recorder: Recorder, original: Any, tx: Any, instruction: Any) -> Any:
    seen = recorder.state(Seen)
    asked = instructions.asks(instruction)
    operands = tuple(tx.stack[len(tx.stack) - len(asked) :])
    _refuse_derived(recorder, instruction, operands)
    if (reason := walked_in_c.obstacle_of_operands(instruction, operands)) is not None:
        recorder.refuse(reason)
        raise unkept_calls.NotKept(reason)
    containers.note_operands(tx, operands, asked)
    answers.note_operands(recorder, instruction.opname, operands)
    mark = len(seen.started)
    run = partial(original, tx, instruction)
    result = iterators.operate(recorder, tx, instruction.opname, operands, run)
    answers.mend(tx, instruction)
    reason = operators.obstacle(operands, asked, seen.started[mark:])
    if reason is None and _makes_text(operands, asked):
        reason = texts.obstacle(operands)
    if reason is None and instruction.opname == "MATCH_CLASS":
        reason = operators.obstacle_of_match(*operands)
        for name in operators.names_matched(operands[2]):
            written_names.look_at_attribute(recorder, operands[0], name, None)
    if reason is not None:
        recorder.refuse(reason)
    _show_top(seen, tx)
    return result


def _refuse_derived(recorder: Recorder, instruction: Any, operands: tuple[Any, ...]) -> None:
    name, reason = instruction.opname, None
    asked = instructions.asks(instruction)[0] if name == "BINARY_OP" else ()
    if name in ("DICT_UPDATE", "DICT_MERGE") or "__or__" in asked:
        reason = derived.obstacle_of_merge(operands)
    if name == "COMPARE_OP" or (name == "BINARY_OP" and "__getitem__" not in asked):
        reason = reason or derived.obstacle_of_operator(operands)
    elif name in ("STORE_SUBSCR", "DELETE_SUBSCR"):
        reason = attributes.obstacle_of_item_write(operands[-2])
    if reason is not None:
        recorder.refuse(reason)


def _makes_text(operands: tuple[Any, ...], asked: tuple[tuple[str, ...], ...]) -> bool:
    """Whether an instruction makes a text of its operands, as `f"{x}"` and `"%s" % x` do."""
    first = asked[0] if asked else ()
    if "__mod__" in first:
        return type_of(look_behind(operands[0])) is str
    return not texts.METHODS.isdisjoint(first)


def _run_and_show(recorder: Recorder, original: Any, tx: Any, instruction: Any) -> Any:
    run = partial(original, tx, instruction)
    if (name := instruction.opname) == "CALL_FUNCTION_EX":  # f(*it)
        result = iterators.operate(recorder, tx, name, tx.stack[-2:], run)
    else:
        result = run()
    _show_top(recorder.state(Seen), tx)
    return result


def _show_top(seen: Seen, tx: Any) -> None:
    if tx.stack and not (found := look_behind(tx.stack[-1])).is_computed:
        _show(seen, found)


_LOOKS: dict[Does | None, Callable[..., Any]] = {
    Does.STARTS: _start,
    Does.LEAVES: _leave,
    Does.READS: _read,
    Does.CALLS: _run_and_show,
    Does.WRITES: _write,
    Does.OPERATES: _operate,
}


# --- the places, and the end of the trace


class Places(Replacements):
    """The places of Dynamo's where user code is interpreted."""

    def obstacle(self) -> str | None:
        """Why this torch can't be watched, or None."""
        for owner, name in _PLACES:
            if getattr(_find(owner), name, None) is None:
                return f"torch {torch.__version__} has no {owner}.{name}, where traces are watched"
        return None

    def _put_all(self) -> None:
        for (owner, name), (make, is_everywhere) in _PLACES.items():
            for each in _class_and_subclasses(_find(owner)) if is_everywhere else (_find(owner),):
                if name in vars(each):
                    self._put(each, name, make, adds=False)
        for module in dynamo_modules():
            if "SkipGuardSource" in vars(module) and module.__name__ != _SOURCES:
                self._put(module, "SkipGuardSource", _keep_guards, adds=False)


def _find(owner: str) -> Any:
    """A class of Dynamo's, or None."""
    module, _, name = owner.rpartition(".")
    return getattr(importlib.import_module(f"torch._dynamo.{module}"), name, None)


_SOURCES = "torch._dynamo.source"
"""Defines the sources; other modules of Dynamo's make them."""


def _keep_guards(skipping: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let Dynamo guard what it would leave out: annotations, and names of the standard library."""

    def keep(source: Any) -> Any:
        return skipping(source) if observation.current() is None else source

    return keep


def _watch_all(table: list[Any]) -> list[Any]:
    return [
        _watch(dis.opname[code], run) if callable(run) else run for code, run in enumerate(table)
    ]


_PLACES: dict[tuple[str, str], tuple[Callable[[Any], Any], bool]] = {
    ("variables.builder.VariableBuilder", "__call__"): (_enter, False),
    ("variables.builder.SourcelessBuilder", "create"): (_enter_without_place, False),
    ("variables.base.VariableTracker", "call_function"): (_call, True),
    ("symbolic_convert.InstructionTranslatorBase", "dispatch_table"): (_watch_all, True),
}
"""What stands for which function of a class; and whether also in the classes derived from it."""


def _class_and_subclasses(cls: type) -> Iterator[type]:
    """A class and all that are derived from it, each once."""
    known: set[type] = set()
    waiting = [cls]
    while waiting:
        each = waiting.pop()
        if each not in known:
            known.add(each)
            waiting += type.__subclasses__(each)
            yield each


PLACES = Places()


def close(recorder: Recorder, graph: Any) -> None:
    """At the end of a trace: guard what came in without a guard, or refuse the trace."""
    seen = recorder.state(Seen)
    names = {
        (each.owner, each.argument)
        for each in recorder.observations()
        if each.question is Question.NAME
    }

    def is_fact(cls: type, name: str) -> bool:
        return (cls, name) in names

    for source, kind, entry in values.unguarded_values(seen.entries, graph, is_fact):
        name = tracing.source_name(source)
        if kind is None:
            place = location.of_frames(entry.stack)
            recorder.refuse(f"{name} is read without a guard", where=place)
            continue
        _add(graph, source.make_guard(kind), entry.stack)
    for source, (variable, stack) in seen.unread.items():
        if look_behind(variable).is_waiting:
            _add(graph, torch_guards.existence(source), stack)


def _add(graph: Any, guard: Any, stack: Any) -> None:
    guard.user_stack = stack
    graph.guards.add(guard, collect_debug_stack=False)
