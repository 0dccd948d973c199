"""Makes conditions for the operators of a graph that torch does not have.

What is registered for such an operator is Python code that runs during a trace: its fake
implementation above all. The code that ran and all that it may have read are conditions, and what
is registered, taken from where torch looks for it.
"""

from __future__ import annotations

import dis
import functools
import linecache
import types
from typing import TYPE_CHECKING, Any

from torch._subclasses.fake_tensor import FakeTensorMode

from npugx_cache import location
from npugx_cache.backend import subgraphs
from npugx_cache.backend.lowering import TORCHS_NAMESPACES
from npugx_cache.backend.operators import NAMESPACE
from npugx_cache.conditions.operators import Registered
from npugx_cache.conditions.process import ANSWERS
from npugx_cache.conditions.source_facts import reachable_functions, rules_fact
from npugx_cache.portable import NotPortable, unwrap
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.private.runtime import calls_of_operators, operator_name
from npugx_cache.trace.conditions.source_facts import is_written_by_users
from npugx_cache.trace.conditions.untraced_code import (
    ENVIRON,
    UntracedCode,
    Words,
    classes_of,
    loads_attribute,
    loads_global,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import fx

    from npugx_cache.conditions import Check
    from npugx_cache.conditions.contents import Contents

RUN = "npugx_operators"
"""A key of the lowered graph's `meta`. The value is the `OperatorRun`."""


class OperatorRun(UntracedCode):
    """The user code that ran for operators, what it may have read, and the operators themselves.

    Make it before the graph is lowered, and give `note` each frame of a step that calls an operator
    that torch does not have, or a graph with such.
    """

    def __init__(self) -> None:
        super().__init__()
        self._step = ""
        self._inside = 0
        self._met: dict[Any, None] = {}
        self._read_for: dict[tuple[str, str], str] = {}

    def words(self) -> Words:
        code = f"code that is registered for operator {self._step}"
        return Words(code, code)

    def note(self, frame: types.FrameType, event: str, arg: object) -> None:
        """Note a "call" or "return" of a function of Python, or a "c_call" of one in C.

        Only what runs for an operator counts: around it torch runs code of packages of its own.
        """
        code = frame.f_code
        if code in _CALLS and event != "c_call":
            called = frame.f_locals[code.co_varnames[_CALLS[code]]]
            if _is_custom(called):
                self._inside += 1 if event == "call" else -1
                self._step = str(called)
                if operator_name(called) != ["packet", str(called)]:
                    self._met[called] = None
        elif not self._inside:
            return
        elif event == "c_call":
            if code in self.codes and not _is_pure(arg):
                self._refuse_compiled(frame, arg)
        elif event == "call" and (code not in ENVIRON or _is_called_by_users(frame)):
            self.look_into(frame)

    def read_names(self, code: types.CodeType, space: dict[str, Any]) -> None:
        for each in _computed_lookups(code):
            what = f"{self.words().code} looks up names that it computes, or all names"
            self.refuse(_reason(what, code, each))
        super().read_names(code, space)
        for function in _kept_by(code, space):
            self._look_behind(function)

    def look_at(self, module: str, name: str) -> None:
        self._read_for.setdefault((module, name), self._step)
        super().look_at(module, name)

    def facts(self, graph: fx.GraphModule | None) -> tuple[Check, ...]:
        """What is registered for the operators, and all that its code may read.

        Raises `NotPortable` for what can't be written down.
        """
        held: dict[types.CodeType, None] = {}
        classes: dict[type, None] = {}
        found: set[Check] = set()
        for operator in self._operators(graph):
            _, namespace, name, overload = operator_name(operator) or ("", "", "", "")
            self._step = f"{namespace}::{name}"
            try:
                registered = Registered(namespace, f"{name}.{overload}")
                found.add(rules_fact(namespace, name, overload))
            except NotPortable as error:
                what = f"{self.words().code} can't be compared in another process: {error}"
                raise NotPortable(_reason(what, *self._first_place())) from None
            held |= registered.codes
            for read in registered.read:
                self.check_remembering(read)
                classes.update((each, None) for cls in read.classes for each in classes_of(cls))
        return (*sorted(found), *self.contents_facts(classes, held))

    def not_readable(self, module: str, name: str, error: NotPortable) -> NotPortable:
        self._step = self._read_for.get((module, name), self._step)
        what = f"{self.words().code} reads {module}.{name}: {error}"
        return NotPortable(_reason(what, *self._place_of(name)))

    def check_remembering(self, read: Contents) -> None:
        for each in read.remembering:
            self._look_behind(each)

    def _look_behind(self, kept: Any) -> None:
        """Take all code behind `functools.cache` as run: it ran for what is remembered."""
        inner = unwrap(kept)
        for each in reachable_functions(inner) if isinstance(inner, types.FunctionType) else ():
            code = each.__code__
            if code in self.codes:
                continue
            if not _READS_ENVIRONMENT.isdisjoint(code.co_names):
                what = (
                    f"{self.words().code} remembers what {code.co_qualname} read of the environment"
                )
                self.refuse(_reason(what, code, None))
            self.read_names(code, each.__globals__)

    def _operators(self, graph: fx.GraphModule | None) -> list[Any]:
        nodes = subgraphs.nodes_of(graph)
        called = [node.target for node in nodes if node.op == "call_function"]
        found = (each for each in called if _is_custom(each) and hasattr(each, "overloadpacket"))
        named = {str(each): each for each in (*found, *self._met)}
        return [named[name] for name in sorted(named)]

    def _first_place(self) -> tuple[types.CodeType | None, dis.Instruction | None]:
        return next(iter(self.codes), None), None

    def _place_of(self, name: str) -> tuple[types.CodeType | None, dis.Instruction | None]:
        """Where the code names something."""
        name = name.rpartition(".")[2]
        for code in self.codes:
            for each in dis.get_instructions(code):
                if each.argval == name:
                    return code, each
        return self._first_place()

    def _refuse_compiled(self, frame: types.FrameType, function: Any) -> None:
        name = getattr(function, "__qualname__", repr(function))
        if name in ANSWERS and is_covered_module(str(function.__module__)):
            return  # a condition asks again (`surroundings.answers_to`)
        what = f"{self.words().code} calls {name}, a function in C that may read anything"
        self.refuse(_reason(what, frame.f_code, frame.f_lineno))


_CHANGE = "pass it to the operator as an argument, or let the code read plain values in globals"


def _reason(what: str, code: types.CodeType | None, at: dis.Instruction | int | None) -> str:
    if code is None:
        return location.reason(what, None, _CHANGE)
    line = at if isinstance(at, int) else at and at.positions and at.positions.lineno
    line = line or code.co_firstlineno
    text = linecache.getline(code.co_filename, line).strip()
    return location.reason(
        what, location.Place(code.co_filename, line, code.co_name, text), _CHANGE
    )


_CALLS = {FakeTensorMode.dispatch.__code__: 1, **calls_of_operators()}
"""Where operators come by, and which argument of these functions is the operator."""


def _is_custom(target: Any) -> bool:
    name = operator_name(target)
    if name is None or name[0] == "hop":
        return False
    return name[1].partition(".")[0] not in (*TORCHS_NAMESPACES, NAMESPACE)


def _is_called_by_users(frame: types.FrameType) -> bool:
    """Whether user code asks for a variable of the environment, through Python's own functions."""
    asking: types.FrameType | None = frame
    while asking is not None and str(asking.f_globals.get("__name__")) in _MAPPINGS:
        asking = asking.f_back
    return asking is not None and is_written_by_users(asking.f_code, asking.f_globals)


_MAPPINGS = frozenset({"os", "collections.abc", "_collections_abc"})
_READS_ENVIRONMENT = frozenset({"environ", "getenv"})


def _kept_by(code: types.CodeType, space: dict[str, Any]) -> Iterator[Any]:
    """The functions with a cache of `functools` that code names."""
    modules = [each for each in map(space.get, code.co_names) if type(each) is types.ModuleType]
    spaces = [space, *(vars(m) for m in modules if not is_covered_module(m.__name__))]
    named = (each.get(name) for each in spaces for name in code.co_names)
    yield from (each for each in named if type(each) is _CACHE)


_CACHE = type(functools.cache(len))


def _is_pure(function: Any) -> bool:
    """Whether a function in C depends on its arguments alone, or on what is guarded elsewhere."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, types.ModuleType):
        home = owner.__name__
    elif owner is None:
        home = str(getattr(function, "__module__", None) or "builtins")
    else:
        home = (owner if isinstance(owner, type) else type(owner)).__module__
    return home.partition(".")[0] in _PURE and getattr(function, "__name__", "") not in _IMPURE


_PURE = frozenset(
    {
        *("builtins", "math", "cmath", "operator", "_operator", "itertools", "functools"),
        *("_functools", "collections", "_collections", "types", "typing", "_typing", "enum"),
        *("re", "_sre", "struct", "_struct", "_abc", "_warnings", "_thread", "torch", "numpy"),
    }
)
_IMPURE = frozenset({"globals", "locals", "vars", "dir", "eval", "exec", "open", "input", "id"})


def _computed_lookups(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Look-ups of a name that is no constant, and of all names at once."""
    instructions = list(dis.get_instructions(code))
    for place, each in enumerate(instructions):
        if each.opname in loads_global and each.argval in _LOOKS_UP:
            if not _has_constant_name(instructions[place + 1 :]):
                yield each
        elif (each.opname in loads_global and each.argval in _WHOLE) or (
            each.opname in loads_attribute and each.argval in _WHOLE
        ):
            yield each


_LOOKS_UP = frozenset({"getattr", "hasattr"})
_WHOLE = frozenset(
    {
        *("vars", "dir", "locals", "setattr", "delattr", "attrgetter", "methodcaller"),
        *("__dict__", "__getattribute__", "__builtins__", "import_module"),
    }
)


def _has_constant_name(following: list[dis.Instruction]) -> bool:
    """Whether the second argument of a call is a constant; the first must be a plain expression."""
    pushed = 0
    for place, each in enumerate(following):
        if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            return False
        if pushed == 1 and dis.stack_effect(each.opcode, each.arg) > 0:
            is_text = each.opname.startswith("LOAD_CONST") and isinstance(each.argval, str)
            after = following[place + 1].opname if place + 1 < len(following) else ""
            return is_text and after.startswith(("LOAD_", "PRECALL", "CALL", "PUSH_NULL"))
        pushed += dis.stack_effect(each.opcode, each.arg)
        if pushed > 1:
            return False
    return False
