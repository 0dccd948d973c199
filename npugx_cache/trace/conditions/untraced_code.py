"""Makes conditions for code that runs during a trace, and that Dynamo does not look into.

Such code is that of a tensor that holds others, and the fake implementation of an operator. Dynamo
has no guards on what the code reads: globals, attributes of modules and objects, variables of the
environment. All of that becomes a condition here. What can't be written down, or changes while the
code runs, refuses the trace.
"""

from __future__ import annotations

import builtins
import collections
import dis
import importlib.util
import linecache
import os
import sys
import traceback
import types
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npugx_cache import location
from npugx_cache.conditions import Check, Kind, Step
from npugx_cache.conditions.contents import Contents
from npugx_cache.conditions.source_facts import contents_hash, fact
from npugx_cache.portable import NotPortable, is_covered_class
from npugx_cache.portable.pinned import is_compiler, is_covered_module
from npugx_cache.trace.conditions.source_facts import is_written_by_users
from npugx_cache.trace.observe.observation import Observation, Question

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Words(NamedTuple):
    """How reasons name the code, and who reads what the code reads."""

    code: str
    reader: str


def _makes_named_tuple(frame: types.FrameType) -> bool:
    """Whether a frame is the text that Python itself writes for a class and evaluates.

    Until torch 2.12 an operator of torch's makes such a class at each call. The names of the fields
    may run user code of their own (`__str__`), which is no such text.
    """
    is_text = (frame.f_code.co_filename, frame.f_code.co_name) == ("<string>", "<module>")
    return is_text and frame.f_back is not None and frame.f_back.f_code is _NAMED_TUPLE


_NAMED_TUPLE: types.CodeType = vars(collections)["namedtuple"].__code__


class UntracedCode:
    """The user code that ran, with its globals (`codes`), and what it may have read.

    `unreached` is the code of which no condition holds the text yet, once `facts` was called.
    """

    def __init__(self) -> None:
        self.codes: dict[types.CodeType, dict[str, Any]] = {}
        self.unreached: list[types.CodeType] = []
        self._seen: set[types.CodeType] = set()
        self._absent: set[tuple[str, str]] = set()
        self._variables: set[str] = set()
        self._before: dict[tuple[str, str], str] = {}
        self._reason = ""

    def words(self) -> Words:
        raise NotImplementedError

    def look_into(self, frame: types.FrameType) -> None:
        """Note what a frame that begins may read."""
        code = frame.f_code
        if code in ENVIRON:
            self.note_environment(frame)
        if code in self._seen:
            return
        self._seen.add(code)
        if _is_library(str(frame.f_globals.get("__name__"))):
            self.look_at(_LIBRARY, "__version__")
        elif is_written_by_users(code, frame.f_globals) and not _makes_named_tuple(frame):
            self.read_names(code, frame.f_globals)

    def read_names(self, code: types.CodeType, space: dict[str, Any]) -> None:
        self.codes[code] = space
        try:
            for module, name in _names_read(code, space, self.words()):
                if name in vars(sys.modules[module]):
                    self.look_at(module, name)
                else:
                    self._absent.add((module, name))
        except (NotPortable, *_UNRESOLVED) as error:  # else it goes into the code that runs
            self.refuse(str(error))

    def refuse(self, reason: str) -> None:
        """Keep the first reason; raising here would raise into the code that runs."""
        self._reason = self._reason or reason

    def note_environment(self, frame: types.FrameType) -> None:
        """Note which variable is read; the name may come from anywhere."""
        name = frame.f_locals.get("key")
        if frame.f_code is _ENVIRON_ITEM and isinstance(name, str):
            self._variables.add(name)
        elif frame.f_code is not _ENVIRON_ITEM:
            what = f"{self.words().code} reads or changes os.environ as a whole"
            frames = traceback.extract_stack(frame)
            written = [each for each in frames if not each.filename.startswith("<frozen ")]
            place = location.of_frames(written)
            change = "read single variables, or read them outside the cached function"
            self.refuse(location.reason(what, place, change))

    def look_at(self, module: str, name: str) -> None:
        if (module, name) not in self._before:
            try:
                self._before[module, name] = contents_hash(module, name)
            except NotPortable:  # `contents_facts` says why
                self._before[module, name] = ""

    def contents_facts(
        self, classes: Iterable[type], held: Iterable[types.CodeType] = ()
    ) -> tuple[Check, ...]:
        """Facts for all that stands under the names that were read. Raises `NotPortable`.

        `classes` are further classes to read. `held` is code that another condition holds, with
        what the code captured.
        """
        if self._reason:
            raise NotPortable(self._reason)
        waiting = {(cls.__module__, cls.__qualname__): None for cls in classes}
        found: dict[tuple[str, str], Check] = {}
        reached: dict[types.CodeType, None] = dict.fromkeys(held)
        # What is read of a name may lead to classes, and to functions that read more names.
        while missing := [each for each in (*self._before, *waiting) if each not in found]:
            for module, name in missing:
                try:
                    read = Contents.under(module, name)
                    self.check_remembering(read)
                    found[module, name] = made = fact(Kind.CONTENTS, contents_hash, module, name)
                except NotPortable as error:
                    raise self.not_readable(module, name, error) from None
                if self._before.get((module, name), made.arg[-1]) != made.arg[-1]:
                    changed = NotPortable("the value changes meanwhile")
                    raise self.not_readable(module, name, changed)
                reached |= read.codes
                inner = (each for cls in read.classes for each in classes_of(cls))
                waiting |= {(cls.__module__, cls.__qualname__): None for cls in inner}
        if self._reason:
            raise NotPortable(self._reason)
        self._refuse_captured(reached)
        self.unreached = [code for code in self.codes if code not in reached]
        return tuple(sorted(found.values()))

    def not_readable(self, module: str, name: str, error: NotPortable) -> NotPortable:
        """The refusal for something that was read and that no condition can hold."""
        return NotPortable(f"{module}.{name} is read by {self.words().reader}: {error}")

    def check_remembering(self, read: Contents) -> None:
        """Raise `NotPortable` for a function that keeps what it gave."""
        for each in read.remembering:
            raise NotPortable(f"{each.__qualname__} remembers what it gave")

    def _refuse_captured(self, reached: dict[types.CodeType, None]) -> None:
        """Refuse a function that was made before the run and captured what nothing else reads."""
        consts = [each for code in self.codes for each in code.co_consts]
        made_inside = {each for each in consts if isinstance(each, types.CodeType)}
        for code in self.codes.keys() - reached.keys() - made_inside:
            if set(code.co_freevars) - {"__class__"}:
                raise NotPortable(f"{code.co_qualname} captured values that have no guard")

    def observations(self) -> Iterator[Observation]:
        """Variables of the environment, names missing in modules, and methods of Tensor."""
        for name in sorted(self._variables):
            yield Observation(Question.ENVIRONMENT, name)
        for module, name in sorted(self._absent):
            yield Observation(Question.HIDDEN, (Step.NAMESPACE, module), name)
        for name in sorted(set().union(*map(attributes_in, self.codes))):
            if callable(getattr(torch.Tensor, name, None)):
                yield Observation(Question.TENSOR_METHOD, None, name)


def classes_of(cls: type) -> Iterator[type]:
    """A class, its bases and its metaclass, without those of torch and Python."""
    return (each for each in (*cls.__mro__, type(cls)) if not is_covered_class(each))


_ENVIRON_ITEM = type(os.environ).__getitem__.__code__
ENVIRON = {
    member.__code__
    for name, member in vars(type(os.environ)).items()
    if isinstance(member, types.FunctionType) and name not in ("__init__", "__repr__")
}

loads_global = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
loads_attribute = frozenset({"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"})
_NAMES_MODULE = loads_attribute | {"IMPORT_NAME"}
_WRITES_GLOBAL = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_BUILTINS = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, (type, types.BuiltinFunctionType)) and value.__module__ == "builtins"
) | {"None", "True", "False", "NotImplemented", "Ellipsis", "__debug__", "__build_class__"}
_REFUSED_BUILTINS = frozenset(
    {"globals", "eval", "exec", "open", "input", "id", "hash", "print", "__import__"}
)
_REFUSED_ATTRIBUTES = frozenset(
    {
        *("getpid", "getppid", "urandom", "getcwd", "listdir", "read_text", "read_bytes"),
        *("perf_counter", "monotonic", "get_ident", "get_native_id", "current_thread"),
        *("exists", "isfile", "isdir", "islink", "stat", "lstat", "access", "scandir", "walk"),
        *("glob", "iglob", "iterdir", "getmtime", "getsize", "gethostname", "getlogin", "getuid"),
        *("cpu_count", "process_cpu_count", "sched_getaffinity", "argv", "orig_argv"),
        *("_getframe", "currentframe", "getrefcount", "getsizeof", "data_ptr"),
        *("modules", "import_module", "__globals__", "f_globals", "__subclasses__"),
    }
)
_OF_THE_CALL = frozenset(
    {"is_grad_enabled", "is_inference_mode_enabled", "is_inference", "is_shared", "_version"}
)
"""What a trace, which runs without gradients and on tensors that it makes, answers by itself."""
_REFUSED_MODULES = frozenset(
    {*("random", "time", "secrets", "uuid", "datetime", "socket", "tempfile", "subprocess")}
)


_UNRESOLVED = (ImportError, ValueError, TypeError, AttributeError)
"""What a relative import raises whose package is not known."""


def _names_read(
    code: types.CodeType, space: dict[str, Any], words: Words
) -> Iterator[tuple[str, str]]:
    """The globals that code looks up, and the attributes of modules, by module and name.

    Raises `NotPortable` for code that may read or do what no condition can tell.
    """
    instructions = list(dis.get_instructions(code))
    counters = _counters(instructions)
    for place, each in enumerate(instructions):
        if each.opname in loads_attribute and each.argval in _REFUSED_ATTRIBUTES:
            _refuse(words, code, each, f"{each.argval} gives something else in another process")
        elif each.opname in loads_attribute and each.argval in _OF_THE_CALL:
            _refuse(words, code, each, f"{each.argval} gives something else in a trace")
        elif each.opname in _NAMES_MODULE and not _REFUSED_MODULES.isdisjoint(
            each.argval.split(".")
        ):
            _refuse(words, code, each, f"{each.argval} gives something else at each call")
        elif each.opname in _WRITES_GLOBAL and each.argval not in counters:
            _refuse(words, code, each, f"it changes the global {each.argval}")
        elif each.opname == "IMPORT_NAME":
            level = int(instructions[place - 2].argval)
            name = importlib.util.resolve_name("." * level + each.argval, space.get("__package__"))
            yield from _attributes_of(sys.modules.get(name), attributes_in(code), set())
        elif each.opname in loads_global and each.argval not in counters:
            yield from _names_of_global(code, each, space, words)


def _counters(instructions: list[dis.Instruction]) -> set[str]:
    """The globals that code only counts in (`CALLS += 1`), so that it decides nothing by them."""
    named: dict[str, list[bool]] = {}
    for place, each in enumerate(instructions):
        if each.opname in loads_global or each.opname in _WRITES_GLOBAL:
            begin = place if each.opname in loads_global else place - 3
            rows = instructions[max(begin, 0) : begin + 4]
            kinds = [row.opname for row in rows]
            counts = (
                len(kinds) == 4
                and kinds[0] in loads_global
                and kinds[1] in ("LOAD_CONST", "LOAD_SMALL_INT")
                and kinds[2:] == ["BINARY_OP", "STORE_GLOBAL"]
                and rows[0].argval == rows[3].argval
            )
            named.setdefault(each.argval, []).append(counts)
    return {name for name, counts in named.items() if all(counts)}


def _names_of_global(
    code: types.CodeType, load: dis.Instruction, space: dict[str, Any], words: Words
) -> Iterator[tuple[str, str]]:
    name = load.argval
    value = space.get(name)
    if name not in space and name in _REFUSED_BUILTINS:
        _refuse(words, code, load, f"{name}() reads or does what no condition tells")
    if name not in space and name in vars(builtins).keys() - _BUILTINS:
        _refuse(words, code, load, f"{name} is no builtin of Python's own")
    if _home_of(value) in _REFUSED_MODULES:
        _refuse(words, code, load, f"{name} gives something else at each call")
    if isinstance(value, _WITH_MODULE) and value.__name__ in _OF_THE_CALL:
        _refuse(words, code, load, f"{name} gives something else in a trace")
    home = _module_of(space)
    if home is not None:
        yield home, name
    elif name in space and not _is_of_a_named_tuple(space):
        _refuse(words, code, load, "its globals belong to no module")
    if isinstance(value, types.ModuleType):
        yield from _attributes_of(value, attributes_in(code), set())


def attributes_in(code: types.CodeType) -> set[str]:
    """The names that code may look up in an object; `getattr` takes a name from a constant."""
    found = {i.argval for i in dis.get_instructions(code) if i.opname in loads_attribute}
    if not {"getattr", "hasattr"}.isdisjoint(code.co_names):
        found |= {each for each in code.co_consts if isinstance(each, str) and each.isidentifier()}
    return found


def _home_of(value: Any) -> str:
    """The module that a value is or comes from; only kinds are asked that run no other code."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    return str(value.__module__) if isinstance(value, _WITH_MODULE) else ""


_MAY_BE_REPLACED = (types.FunctionType, types.BuiltinFunctionType, bool, int, float, str)
_WITH_MODULE = (types.FunctionType, types.BuiltinFunctionType, type)


def _attributes_of(
    module: types.ModuleType | None, names: set[str], seen: set[int]
) -> Iterator[tuple[str, str]]:
    """The names among `names` in a module and in the modules in it, and so on.

    Of torch and Python, functions and numbers alone: somebody may have put others there.
    """
    if module is None or id(module) in seen or is_compiler(module.__name__):
        return
    seen.add(id(module))
    if _is_library(module.__name__):
        yield _LIBRARY, "__version__"
        return
    if is_covered_module(module.__name__):
        is_found = sys.modules.get(module.__name__) is module
        for name in sorted(names & vars(module).keys()) if is_found else ():
            inner = vars(module)[name]
            if isinstance(inner, _MAY_BE_REPLACED):
                yield module.__name__, name
            elif isinstance(inner, types.ModuleType):
                yield from _attributes_of(inner, names, seen)
        return
    if sys.modules.get(module.__name__) is not module:
        raise NotPortable(f"no name leads to the module {module.__name__}")
    for name in sorted({*names, "__getattr__"}):
        yield module.__name__, name
        inner = vars(module).get(name)
        if isinstance(inner, types.ModuleType):
            yield from _attributes_of(inner, names, seen)


_LIBRARY = "numpy"
"""A library whose version says what its functions do. What it reads by itself is no condition."""


def _is_library(module: str) -> bool:
    return module.partition(".")[0] == _LIBRARY


def _module_of(space: dict[str, Any]) -> str | None:
    name = str(space.get("__name__"))
    module = sys.modules.get(name)
    return name if module is not None and vars(module) is space else None


def _is_of_a_named_tuple(space: dict[str, Any]) -> bool:
    return str(space.get("__name__")).startswith("namedtuple_")


def _refuse(words: Words, code: types.CodeType, at: dis.Instruction, what: str) -> None:
    line = (at.positions.lineno if at.positions is not None else None) or code.co_firstlineno
    text = linecache.getline(code.co_filename, line).strip()
    place = location.Place(code.co_filename, line, code.co_name, text)
    what = f"{words.code} is not traced, and {what}"
    raise NotPortable(location.reason(what, place, "do this outside the cached function"))
