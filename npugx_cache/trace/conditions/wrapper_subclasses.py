"""Makes conditions for tensors that hold other tensors, such as quantised weights.

What an operator does with such a tensor is Python code of its class (`__torch_dispatch__`). Dynamo
does not look into that code, so it has no guards on what the code reads: the attributes of the
tensor, the tables of its class, globals. All of that becomes a condition here, and the code itself.
What can't be written down, or changes while the code runs, refuses the trace.
"""

from __future__ import annotations

import dis
import enum
import importlib.util
import linecache
import os
import sys
import traceback
import types
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache import location
from npugx_cache.backend.inner_tensors import wrappers_in
from npugx_cache.conditions import Check, Kind, Step
from npugx_cache.conditions.contents import Contents
from npugx_cache.conditions.kinds import attribute_names
from npugx_cache.conditions.source_facts import contents_hash, fact
from npugx_cache.portable import NotPortable, encode, is_covered_class
from npugx_cache.portable.pinned import is_compiler, is_covered_module
from npugx_cache.private import meshes
from npugx_cache.private.runtime import is_wrapper
from npugx_cache.trace.conditions.source_facts import is_written_by_users
from npugx_cache.trace.observe.observation import Observation, Question

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npugx_cache.trace.conditions.builder import TreeBuilder

RUN = "npugx_wrappers"
"""A key of the lowered graph's `meta`. The value is the `CodeRun`."""

# --- the attributes of a tensor


def add_attributes(builder: TreeBuilder, node: int) -> None:
    """Add a check of each attribute of a tensor that holds others, but for those that it holds.

    Dynamo guards the tensors that it holds as it guards any tensor.
    """
    value = builder.value(node)
    _add_names(builder, node, frozenset(value.__tensor_flatten__()[0]), 0)


def _add_names(builder: TreeBuilder, node: int, without: frozenset[str], depth: int) -> None:
    value = builder.value(node)
    builder.described.update(dict.fromkeys(_classes_of(type(value))))
    builder.check(node, Kind.ATTRIBUTES, attribute_names(value))
    for name, own in _own(value):
        if name not in without:
            child = builder.step(node, Step.ATTR, name)
            if builder.value(child) is not own:
                raise NotPortable(f"{name} is another thing in the class of the object")
            _add_value(builder, child, name, depth + 1)


def _own(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object has of its own, by name: in its `__dict__`, and in slots of its classes."""
    yield from ((name, vars(value)[name]) for name in attribute_names(value))
    for cls in type(value).__mro__:
        for name, member in vars(cls).items():
            if isinstance(member, types.MemberDescriptorType) and not is_covered_class(cls):
                try:
                    yield name, member.__get__(value)
                except AttributeError:
                    raise NotPortable(f"the slot {name} is empty") from None


def _add_value(builder: TreeBuilder, node: int, name: str, depth: int) -> None:
    value = builder.value(node)
    kind = type(value)
    classes: dict[type, None] = {}
    if _is_plain(value, classes):
        builder.described.update(classes)
        builder.check(node, Kind.EQUALS, encode(value))
    elif isinstance(value, torch.Tensor):
        raise NotPortable(f"{name} is a tensor that __tensor_flatten__ does not name")
    elif depth > _MAX_DEPTH or is_covered_class(kind) or not hasattr(value, "__dict__"):
        raise NotPortable(f"{name} is a {kind.__qualname__}, which no condition can hold")
    else:
        Contents(value)  # refuses what shows only a part of what it holds
        builder.check_type(node)
        _add_names(builder, node, frozenset(), depth)


_MAX_DEPTH = 8


def _is_plain(value: Any, classes: dict[type, None]) -> bool:
    """Whether the encoding says all about a value; `classes` gets the classes in it."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset, torch.Size):
        return all(_is_plain(each, classes) for each in value)
    if kind is dict:
        return all(_is_plain(each, classes) for pair in value.items() for each in pair)
    if isinstance(value, (enum.Enum, type)):
        classes.update(dict.fromkeys(_classes_of(value if isinstance(value, type) else kind)))
        return True
    return kind in _PLAIN


_PLAIN = frozenset(
    {
        *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    }
)


def _is_of_users(value: Any) -> bool:
    """Whether it is a tensor that holds others, and may be of a class of the user's.

    What torch's own code reads of a sharded tensor is guarded, and that code is in the key.
    """
    return is_wrapper(value) and not meshes.is_sharded(value)


def _classes_of(cls: type) -> Iterator[type]:
    return (each for each in (*cls.__mro__, type(cls)) if not is_covered_class(each))


def _described(value: Any) -> str:
    """The attributes of a tensor that holds others, apart from the tensors, as one text."""
    made = []
    for each in wrappers_in(value):
        inner = each.__tensor_flatten__()[0]
        own = {name: own for name, own in _own(each) if name not in inner}
        made.append([type(each).__qualname__, list(inner), Contents(own).text])
    return repr(made)


# --- the code of its class


class CodeRun:
    """The user code that ran for tensors that hold others, and what it may have read.

    Make it before the code runs, and give `note` each frame. `codes` is the code with its globals.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self.codes: dict[types.CodeType, dict[str, Any]] = {}
        self._asking = meshes.asking_for_rank()
        self._asked = False
        self._values = [(each, _described(each)) for each in values if _is_of_users(each)]
        self._seen: set[types.CodeType] = set()
        self._entries: set[types.CodeType] = set()
        self._absent: set[tuple[str, str]] = set()
        self._variables: set[str] = set()
        self._inside = 0
        self._before: dict[tuple[str, str], str] = {}
        self._reason = ""
        self.unreached: list[types.CodeType] = []
        for value, _ in self._values:
            for wrapper in wrappers_in(value):
                for cls in _classes_of(type(wrapper)):
                    self._look_at(cls.__module__, cls.__qualname__)
                    self._entries.update(Contents(cls).codes)

    def note(self, frame: types.FrameType, event: str) -> None:
        """Note a "call" or a "return", if it is in code of one of the classes or called by it."""
        code = frame.f_code
        if event == "call" and code in self._asking and not meshes.is_same_on_all_ranks(frame):
            self._asked = True
        if code in self._entries:
            self._inside += 1 if event == "call" else -1
        if event != "call" or not self._inside:
            return
        if code in _ENVIRON:
            self._note_environment(frame)
        if code in self._seen:
            return
        self._seen.add(code)
        if is_written_by_users(code, frame.f_globals):
            self.codes[code] = frame.f_globals
            try:
                for module, name in _names_read(code, frame.f_globals):
                    if name in vars(sys.modules[module]):
                        self._look_at(module, name)
                    else:
                        self._absent.add((module, name))
            except (NotPortable, *_UNRESOLVED) as error:  # else it goes into the code that runs
                self._reason = self._reason or str(error)

    def _note_environment(self, frame: types.FrameType) -> None:
        """Note which variable is read; the name may come from anywhere."""
        name = frame.f_locals.get("key")
        if frame.f_code is _ENVIRON_ITEM and isinstance(name, str):
            self._variables.add(name)
        elif frame.f_code is not _ENVIRON_ITEM:
            what = "code of a tensor that holds others reads or changes os.environ as a whole"
            frames = traceback.extract_stack(frame)
            written = [each for each in frames if not each.filename.startswith("<frozen ")]
            place = location.of_frames(written)
            change = "read single variables, or read them outside the cached function"
            self._reason = self._reason or location.reason(what, place, change)

    def _look_at(self, module: str, name: str) -> None:
        if (module, name) not in self._before:
            try:
                self._before[module, name] = contents_hash(module, name)
            except NotPortable:  # `facts` says why
                self._before[module, name] = ""

    def refuse_other_attributes(self, traced: Iterable[Any]) -> None:
        """Raise `NotPortable` if the trace changed an attribute, or did not see one.

        `traced` are the copies of the tensors on which the code ran. torch makes a copy with
        `__tensor_unflatten__`, which may leave out an attribute; objects among the attributes are
        those of the tensor itself.
        """
        copies = [each for each in traced if _is_of_users(each)]
        for (value, text), copy in zip(self._values, copies, strict=True):
            if _described(value) != text:
                raise NotPortable(f"code of {type(value).__qualname__} changes its attributes")
            if type(copy) is not type(value) or _described(copy) != text:
                kind = type(value).__qualname__
                raise NotPortable(f"{kind}.__tensor_unflatten__ makes a tensor that differs")

    def facts(self, builder: TreeBuilder, root: types.CodeType) -> tuple[Check, ...]:
        """All that the code may have read besides the attributes. Raises `NotPortable`.

        `root` is the traced function.
        """
        if self._reason:
            raise NotPortable(self._reason)
        try:
            return self._facts(builder)
        except NotPortable as error:
            raise NotPortable(placed(error, root)) from None

    def _facts(self, builder: TreeBuilder) -> tuple[Check, ...]:
        waiting = list(self._before)
        waiting += [(cls.__module__, cls.__qualname__) for cls in builder.described]
        found: dict[tuple[str, str], Check] = {}
        reached: dict[types.CodeType, None] = {}
        while waiting:
            module, name = waiting.pop()
            if (module, name) in found:
                continue
            try:
                read = Contents.under(module, name)
                found[module, name] = made = fact(Kind.CONTENTS, contents_hash, module, name)
            except NotPortable as error:
                what = f"{module}.{name} is read by a tensor that holds others: {error}"
                raise NotPortable(what) from None
            if self._before.get((module, name), made.arg[-1]) != made.arg[-1]:
                raise NotPortable(
                    f"{module}.{name} changes when a tensor that holds others is used"
                )
            reached |= read.codes
            classes = (each for cls in read.classes for each in _classes_of(cls))
            waiting += [(cls.__module__, cls.__qualname__) for cls in classes]
        self._refuse_captured(reached)
        self.unreached = [code for code in self.codes if code not in reached]
        return tuple(sorted(found.values()))

    def _refuse_captured(self, reached: dict[types.CodeType, None]) -> None:
        """Refuse a function that was made before the run and captured what nothing else reads."""
        consts = [each for code in self.codes for each in code.co_consts]
        made_inside = {each for each in consts if isinstance(each, types.CodeType)}
        for code in self.codes.keys() - reached.keys() - made_inside:
            if set(code.co_freevars) - {"__class__"}:
                raise NotPortable(f"{code.co_qualname} captured values that have no guard")

    def add_attributes_of_others(
        self, builder: TreeBuilder, nodes: Iterable[int | None], root: types.CodeType
    ) -> None:
        """Check that the plain tensors of a call get no attributes. Raises `NotPortable`.

        The code may look for attributes in each tensor that it is given, and the copies on which it
        was traced have none but those of `nn.Buffer`. `nodes` are those of the graph's inputs.
        `root` is the traced function.
        """
        read = {name for code in self.codes for name in code.co_names}
        for node in nodes if self._values else ():
            if node is None:
                continue
            value = builder.value(node)
            if isinstance(value, torch.Tensor) and not is_wrapper(value):
                names = attribute_names(value)
                for name in names:
                    if name in _OF_BUFFERS and getattr(value, "_is_buffer", False) is True:
                        _add_value(builder, builder.step(node, Step.ATTR, name), name, 0)
                    elif name in read or (read & _READS_ANY and name not in _MARKS):
                        what = "which code of a tensor that holds others may read"
                        error = NotPortable(f"a tensor has the attribute {name}, {what}")
                        raise NotPortable(placed(error, root))
                builder.check(node, Kind.ATTRIBUTES, names)

    def observations(self) -> Iterator[Observation]:
        """Variables of the environment, names missing in modules, and methods of Tensor.

        And the rank, if torch's code for sharded tensors asked for the place of this rank.
        """
        if self._asked:
            yield Observation(Question.ANSWER, "get_rank")
        for name in sorted(self._variables):
            yield Observation(Question.ENVIRONMENT, name)
        for module, name in sorted(self._absent):
            yield Observation(Question.HIDDEN, (Step.NAMESPACE, module), name)
        for name in sorted(set().union(*map(_attributes_in, self.codes))):
            if callable(getattr(torch.Tensor, name, None)):
                yield Observation(Question.TENSOR_METHOD, None, name)


_ENVIRON_ITEM = type(os.environ).__getitem__.__code__
_ENVIRON = {
    member.__code__
    for name, member in vars(type(os.environ)).items()
    if isinstance(member, types.FunctionType) and name not in ("__init__", "__repr__")
}

_LOADS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_LOADS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"})
_NAMES_MODULE = _LOADS_ATTRIBUTE | {"IMPORT_NAME"}
_WRITES_GLOBAL = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_READS_ANY = frozenset({"getattr", "hasattr", "vars", "__dict__"})
_OF_BUFFERS = frozenset({"_is_buffer", "persistent"})
"""What `nn.Buffer` sets on a tensor; a copy on which the code is traced has these too."""
_MARKS = frozenset({"_is_hf_initialized"})
"""Attributes that a library sets on parameters while it makes them, and reads nowhere else."""

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


def _names_read(code: types.CodeType, space: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The globals that code looks up, and the attributes of modules, by module and name.

    Raises `NotPortable` for code that may read or do what no condition can tell.
    """
    instructions = list(dis.get_instructions(code))
    for place, each in enumerate(instructions):
        if each.opname in _LOADS_ATTRIBUTE and each.argval in _REFUSED_ATTRIBUTES:
            _refuse(code, each, f"{each.argval} gives something else in another process")
        elif each.opname in _LOADS_ATTRIBUTE and each.argval in _OF_THE_CALL:
            _refuse(code, each, f"{each.argval} gives something else in a trace")
        elif each.opname in _NAMES_MODULE and not _REFUSED_MODULES.isdisjoint(
            each.argval.split(".")
        ):
            _refuse(code, each, f"{each.argval} gives something else at each call")
        elif each.opname in _WRITES_GLOBAL:
            _refuse(code, each, f"it changes the global {each.argval}")
        elif each.opname == "IMPORT_NAME":
            level = int(instructions[place - 2].argval)
            name = importlib.util.resolve_name("." * level + each.argval, space.get("__package__"))
            yield from _attributes_of(sys.modules.get(name), _attributes_in(code), set())
        elif each.opname in _LOADS_GLOBAL:
            yield from _names_of_global(code, each, space)


def _names_of_global(
    code: types.CodeType, load: dis.Instruction, space: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    name = load.argval
    value = space.get(name)
    if name not in space and name in _REFUSED_BUILTINS:
        _refuse(code, load, f"{name}() reads or does what no condition tells")
    if _home_of(value) in _REFUSED_MODULES:
        _refuse(code, load, f"{name} gives something else at each call")
    if isinstance(value, _WITH_MODULE) and value.__name__ in _OF_THE_CALL:
        _refuse(code, load, f"{name} gives something else in a trace")
    home = _module_of(space)
    if home is not None:
        yield home, name
    elif name in space and not _is_of_a_named_tuple(space):
        _refuse(code, load, "its globals belong to no module")
    if isinstance(value, types.ModuleType):
        yield from _attributes_of(value, _attributes_in(code), set())


def _attributes_in(code: types.CodeType) -> set[str]:
    """The names that code may look up in an object; `getattr` takes a name from a constant."""
    found = {i.argval for i in dis.get_instructions(code) if i.opname in _LOADS_ATTRIBUTE}
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


def _module_of(space: dict[str, Any]) -> str | None:
    name = str(space.get("__name__"))
    module = sys.modules.get(name)
    return name if module is not None and vars(module) is space else None


def _is_of_a_named_tuple(space: dict[str, Any]) -> bool:
    return str(space.get("__name__")).startswith("namedtuple_")


_CHANGE = "hand plain tensors to the cached function, and return such, as .to_local() gives them"


def placed(error: NotPortable, root: types.CodeType) -> str:
    """The reason of a refusal, with the place of the traced function."""
    place = location.Place(root.co_filename, root.co_firstlineno, root.co_name, "")
    return location.reason(str(error), place, _CHANGE)


def _refuse(code: types.CodeType, at: dis.Instruction, what: str) -> None:
    line = (at.positions.lineno if at.positions is not None else None) or code.co_firstlineno
    text = linecache.getline(code.co_filename, line).strip()
    place = location.Place(code.co_filename, line, code.co_name, text)
    what = f"code of a tensor that holds others is not traced, and {what}"
    raise NotPortable(location.reason(what, place, "do this outside the cached function"))
