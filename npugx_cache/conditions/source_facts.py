"""Source facts: the Python code that a trace went through, in a form that a restore can re-check.

Guards say nothing about code, because Dynamo inlines a helper and forgets its text. A fact names
one piece of code, or one answer of a class that Dynamo made a constant, and records what was found
under the name. The check of a fact looks at what is loaded now, so it sees an edit, another version
of a package, and a function that was patched at run time. Code of torch and of Python has no facts,
because their versions are in the key.

A fact is a condition (`data.Check`) on the call as a whole; its argument is the module, the name
and what was recorded. Classes that no name leads to have no facts.
"""

from __future__ import annotations

import ast
import contextlib
import enum
import functools
import gc
import sys
import types
from abc import ABCMeta
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npugx_cache.conditions.data import CALL, Check, Kind
from npugx_cache.passing import is_passing
from npugx_cache.portable import (
    NotPortable,
    OnlyHere,
    all_code,
    code_hash,
    contents,
    digest,
    encode,
    function_chain,
    has_name,
    identity,
    is_covered_class,
    look_up,
    module_of,
    name_of,
    texts_in,
    unwrap,
)
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.private.fx import without_fx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from npugx_cache import location
    from npugx_cache.conditions.data import Conditions


def fact(kind: Kind, found: Callable[[str, str], str], module: str, name: str) -> Check:
    """The fact that is true now; raises `NotPortable`. `found` is what the kind records."""
    return Check(CALL, kind, (module, name, found(module, name)))


def texts(conditions: Conditions, code: types.CodeType) -> frozenset[str | bytes]:
    """The texts in this code and in that of the functions of the facts, as it is loaded now."""
    codes = [code]
    for module, name, _ in conditions.arguments(Kind.FUNCTION):
        with contextlib.suppress(NotPortable):
            codes += [function.__code__ for function in function_chain(look_up(module, name))]
    return texts_in(codes)


# --- facts of the live process


def operator_fact(namespace: str, name: str, overload: str) -> Check:
    return fact(Kind.OPERATOR, operator_schema, namespace, f"{name}.{overload}")


def rules_fact(namespace: str, name: str, overload: str) -> Check:
    return fact(Kind.OPERATOR_RULES, operator_rules, namespace, f"{name}.{overload}")


def group_fact(name: str) -> Check:
    """The ranks of a process group: their number is folded into the sizes of a graph."""
    return fact(Kind.GROUP, group_ranks, "torch.distributed", name)


def lookup_facts(lookups: Iterable[tuple[type, str]]) -> tuple[Check, ...]:
    """Where attributes of guarded objects are found: one fact for all names in a class.

    Its argument is the module, the name of the class, and then each name and its provider.
    """
    asked: dict[type, set[str]] = {}
    for cls, name in lookups:
        for named in _with_names(cls):
            asked.setdefault(named, set()).add(name)
    facts = []
    for cls, names in asked.items():
        where, ordered = (cls.__module__, str(name_of(cls))), sorted(names)
        found = zip(ordered, providers(*where, ordered), strict=True)
        facts.append(Check(CALL, Kind.LOOKUP, (*where, *chain.from_iterable(found))))
    return tuple(sorted(facts))


def value_fact(cls: type, name: str) -> Check:
    """The value of an attribute of a class, which nobody can edit in place."""
    known = name_of(cls)
    if known is None:
        raise OnlyHere(f"no name leads to {cls.__qualname__}")
    return fact(Kind.CLASS_VALUE, class_value, cls.__module__, f"{known}.{name}")


def function_value_facts(
    read: Mapping[tuple[types.FunctionType, str], location.Place | None],
    names: Iterable[tuple[type, str]],
) -> tuple[Check, ...]:
    """The attributes of functions in classes: of each function, and the name of the attribute.

    `names` are those that were looked up in classes: some of them lead to the functions. Raises
    `NotPortable` for a function that no name leads to, and for a value that nobody can compare.
    """
    from npugx_cache import location  # only a trace needs it

    places = {(base, name) for cls, name in set(names) for base in cls.__mro__}
    members = [(base, name, vars(base)[name]) for base, name in places if name in vars(base)]
    found: list[Check] = []
    for (function, attribute), read_at in read.items():
        named = [
            (base, f"{name_of(base) or base.__qualname__}.{name}.{attribute}")
            for base, name, member in members
            if any(each is function for each in functions_of_method(member))
        ]
        try:
            attribute_text(function, attribute)
            if not named or not all(name_of(base) for base, _ in named):
                raise OnlyHere("no name leads to it")
        except NotPortable as error:
            what = f"the attribute {attribute} of {function.__qualname__} has no guard ({error})"
            change = "read it outside the cached function and pass the value in"
            raise type(error)(location.reason(what, read_at, change)) from None
        rows = ((base.__module__, full) for base, full in named)
        found += [fact(Kind.FUNCTION_VALUE, function_value, *row) for row in rows]
    return tuple(sorted(found))


def class_facts_of(
    pairs: Iterable[tuple[type, type]], enums: Iterable[type], met: Iterable[type]
) -> tuple[Check, ...]:
    """What was asked of pairs of classes, members of enumerations, special names of those met.

    A `__bool__` or an `__init__` that a class gets later changes what was traced, and nothing else
    tells.
    """
    with_kinds = ((cls, each) for cls in met for each in (cls, type(cls)))
    met = {each for cls, each in with_kinds if each is cls or not is_covered_class(each)}
    named = ((cls, other, name_of(other)) for cls, other in pairs)
    asked = ((cls, f" < {other.__module__}:{name}") for cls, other, name in named if name)
    edited = ((cls, "") for cls in enums if not is_covered_class(cls))
    facts = [
        *_of_classes(Kind.SUBCLASS, is_subclass, asked),
        *_of_classes(Kind.MEMBERS, members_hash, edited),
        *_of_classes(Kind.SPECIAL_NAMES, special_hash, ((cls, "") for cls in met)),
    ]
    return tuple(sorted(facts))


def method_facts(
    classes: Mapping[type, location.Place | None], is_traced: Callable[[types.FunctionType], bool]
) -> tuple[Check, ...]:
    """What traced functions captured that stand in classes of user code, or in bases of these.

    `classes` has the place where the trace made an object of each. Raises `NotPortable` where no
    name leads to such a class.
    """
    rows = []
    for base, made_at in {base: at for cls, at in classes.items() for base in cls.__mro__}.items():
        if is_covered_class(base):
            continue
        for name, member in vars(base).copy().items():
            chain = function_chain(member)
            if any(map(is_traced, chain)) and any(map(captured_values, chain)):
                if name_of(base) is None:
                    from npugx_cache import location

                    what = f"{base.__qualname__}.{name} captured values, and the class has no name"
                    change = "define the class at the top level of a module"
                    raise OnlyHere(location.reason(what, made_at, change))
                rows.append((base, f".{name}"))
    return tuple(sorted(_of_classes(Kind.METHOD, method_hash, rows)))


def captured_values(function: types.FunctionType) -> list[object]:
    """The defaults, and the values in the closure but for the class that `super()` keeps there."""
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    held = [contents(cell) for name, cell in zip(names, cells, strict=True) if name != "__class__"]
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *held]


def _of_classes(
    kind: Kind, found: Callable[[str, str], str], rows: Iterable[tuple[type, str]]
) -> Iterator[Check]:
    """Facts about classes; each row has a class, and what follows its name in that of the fact."""
    for cls, rest in rows:
        for named in _with_names(cls):
            with contextlib.suppress(NotPortable):
                yield fact(kind, found, named.__module__, f"{name_of(named)}{rest}")


def _with_names(cls: type) -> list[type]:
    """The class, or the nearest of its bases to which names lead.

    The identity of a class without a name holds the names in the class, and what its bases are
    called: the facts about these bases say what is in them.
    """
    if name_of(cls):
        return [cls]
    bases = (base for base in cls.__bases__ if base is not object)
    return [named for base in bases for named in _with_names(base)]


def answer_facts(answers: Iterable[tuple[Any, tuple[str, str]]]) -> tuple[Check, ...]:
    """What marked functions gave during the trace, by their arguments."""
    rows = (
        (function.__module__, f"{function.__qualname__}({arguments})", answer)
        for function, (arguments, answer) in answers
    )
    return tuple(Check(CALL, Kind.ANSWER, row) for row in sorted(rows))


def tensor_method_facts(names: Iterable[str]) -> tuple[Check, ...]:
    """What methods are that a graph calls: of any tensor, or of a sharded one."""
    tensor = tensor_class(_TENSOR)
    owned = ((_TENSOR if hasattr(tensor, name) else _SHARDED, name) for name in sorted(names))
    return tuple(fact(Kind.TENSOR_METHOD, tensor_method, owner, name) for owner, name in owned)


def import_facts(names: Iterable[str]) -> tuple[Check, ...]:
    """The modules that the traced code imports itself, in the order in which it does."""
    return tuple(Check(CALL, Kind.IMPORT, name) for name in names)


_TENSOR, _SHARDED = "torch.Tensor", "torch.distributed.tensor.DTensor"


def tensor_class(name: str) -> Any:
    """The class of tensors with the name that a fact has; raises `NotPortable`."""
    module, _, cls = (_TENSOR if name == _TENSOR else _SHARDED).rpartition(".")
    return look_up(module, cls)


# --- what a name stands for now; raises `NotPortable` for one that is gone


def function_hash(module: str, name: str) -> str:
    chain = function_chain(look_up(module, name))
    if not chain:
        raise NotPortable(f"{module}.{name} is not a Python function")
    return digest(map(_hash_of, chain))[:32]


def _hash_of(function: types.FunctionType) -> str:
    """Code and defaults: a default that Dynamo folded into the graph has no guard of its own."""
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return code_hash(function.__code__) + "".join(map(text_or_type, defaults))


def text_or_type(value: object) -> str:
    """A value as text; one that is not portable (a logger) counts by its type."""
    try:
        return repr(encode(value))
    except NotPortable:
        return type(value).__qualname__


def method_hash(module: str, name: str) -> str:
    """As `function_hash`, with what the functions captured.

    A method of an object that the trace itself made has no guards on what the method captured, and
    functions that a decorator made differ in nothing else.
    """
    functions = functions_of_method(look_up(module, name))
    if not functions:
        raise NotPortable(f"{module}.{name} is not a Python function")
    return digest(
        code_hash(each.__code__) + "".join(map(_text_of_captured, captured_values(each)))
        for each in functions
    )[:32]


def functions_of_method(found: object) -> list[types.FunctionType]:
    """As `function_chain`, with the functions that these have as defaults, and so on."""
    functions = function_chain(found)
    for each in functions:  # which grows meanwhile
        for value in captured_values(each):
            if type(value) is types.FunctionType:
                functions += [new for new in function_chain(value) if new not in functions]
    return functions


def function_place(module: str, name: str) -> str:
    """Where a function and the decorators around it are written, for people."""
    return _places(function_chain(look_up(module, name)))


def method_place(module: str, name: str) -> str:
    return _places(functions_of_method(look_up(module, name)))


def _places(functions: Iterable[types.FunctionType]) -> str:
    """One of the functions changed, and a digest does not tell which: the places of all."""
    from npugx_cache import location

    written = (each.__code__ for each in functions if not each.__code__.co_filename.startswith("<"))
    return " or ".join(dict.fromkeys(str(location.of_code(code)) for code in written))


def function_value(module: str, full: str) -> str:
    """An attribute of the functions of a method (`functions_of_method`), one after the other."""
    path, _, name = full.rpartition(".")
    functions = functions_of_method(look_up(module, path))
    if not functions:
        raise NotPortable(f"{module}.{path} is not a Python function")
    return digest(_text_of_attribute(each, name) for each in functions)[:32]


def attribute_text(function: types.FunctionType, name: str) -> str:
    """An attribute of a function as text, "" if there is none; raises `NotPortable`."""
    try:
        return repr(encode(getattr(function, name)))
    except AttributeError:
        return ""


def _text_of_attribute(function: types.FunctionType, name: str) -> str:
    """One that is not portable counts by its type: it is of another function than the one asked."""
    try:
        return attribute_text(function, name)
    except NotPortable:
        return text_or_type(getattr(function, name))


def _text_of_captured(value: object) -> str:
    """Functions are among the `functions_of_method` themselves."""
    return "" if type(value) is types.FunctionType else text_or_type(value)


def providers(module: str, qualname: str, names: Iterable[str]) -> list[str]:
    """For each name the first class of the MRO that has the name, "" if none has.

    With what kind of descriptor the class has there, the name of the function in the descriptor,
    which a library may have made (`_replace` of a namedtuple), and the function's code, if the
    function is a `function_without_name`.
    """
    spaces = [(cls, vars(cls)) for cls in getattr(look_up(module, qualname), "__mro__", ())]
    found = []
    for name in names:
        text = ""
        for cls, space in spaces:
            if name in space:
                text = _provider(cls, name, space[name])
                break
        found.append(text)
    return found


def _provider(cls: type, name: str, member: object) -> str:
    member = without_fx(member)
    kind = type(member).__name__ if hasattr(type(member), "__get__") else ""
    module = cls.__module__
    of_module = module if type(module) is str else ""
    return f"{of_module}.{cls.__qualname__} {kind} {made_by(cls, name, member) if kind else ''}"


def function_without_name(cls: type, name: str, member: object) -> types.FunctionType | None:
    """The function behind an attribute of a class, if the attribute's own name does not lead to it.

    A fact about traced code finds the code by a name. That does not tell which function the class
    has now, where a factory, a lambda, a decorator or another class made the function: two
    functions of one factory have the same name. So have the functions of two classes of one
    factory, to which no name leads. No fact is about the code of torch and Python, so of their
    classes the function counts whatever its name is. What the function captured has
    guards, or a fact of the kind `METHOD`. `member` is the attribute, `without_fx`.
    """
    function = unwrap(member)
    if type(function) is not types.FunctionType:
        return None
    own, home = f"{cls.__qualname__}.{name}", cls.__module__
    named = function.__module__, function.__qualname__, function.__code__.co_qualname
    if set(map(type, (*named, home))) != {str} or is_covered_class(cls):
        return function
    if named != (home, own, own):
        return function
    try:  # `has_name` without its calls, because each lookup of a restart comes here
        leads = sys.modules[home].__dict__[cls.__qualname__] is cls
    except (KeyError, AttributeError):  # it is in another class or a function
        leads = has_name(cls)
    return None if leads else function


def class_value(module: str, full: str) -> str:
    qualname, _, name = full.rpartition(".")
    space = getattr(look_up(module, qualname), "__dict__", {})
    if name not in space:  # what has the name of the class now may be no class
        return ""
    value = space[name]
    if isinstance(value, type) and not name_of(value):
        raise NotPortable(f"no name leads to {value.__qualname__}")
    return digest([repr(encode(value))])[:32]


def tensor_method(owner: str, name: str) -> str:
    found = getattr(tensor_class(owner), name, None)
    if found is None:
        raise NotPortable(f"{owner} has no method {name}")
    return repr(identity(found))


def file_hash(module: str, qualname: str) -> str:
    """Hashes of all code objects of that qualname in the module's source file; "" if none."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if not path:
        return ""
    try:
        whole = _code_of_file(path, Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        if is_passing(error):
            raise
        return ""
    return ",".join(sorted({code_hash(code)[:16] for code in whole.get(qualname, ())}))


@functools.lru_cache(maxsize=1)
def _code_of_file(path: str, text: bytes) -> dict[str, list[types.CodeType]]:
    """All code in a file, by qualified name. An entry may have facts about many names in it."""
    found: dict[str, list[types.CodeType]] = {}
    for code in all_code(compile(text, path, "exec", dont_inherit=True)):
        found.setdefault(code.co_qualname, []).append(code)
    return found


def contents_hash(module: str, name: str) -> str:
    """All that stands under a name; only tensors that hold others need this."""
    from npugx_cache.conditions.contents import Contents

    return Contents.under(module, name).hash()


def operator_rules(namespace: str, name: str) -> str:
    """What is registered for an operator; only operators that torch does not have need this."""
    from npugx_cache.conditions.operators import registration_hash

    return registration_hash(namespace, name)


def operator_schema(namespace: str, name: str) -> str:
    from npugx_cache.portable import resolve_op
    from npugx_cache.private.runtime import schema_text

    base, _, overload = name.partition(".")
    return schema_text(resolve_op(namespace, base, overload))


def group_ranks(_: str, name: str) -> str:
    from npugx_cache.private import process_groups

    group = process_groups.find(name)
    if group is None:
        raise NotPortable(f"there is no process group {name!r}")
    return f"ranks {process_groups.facts_of(group)[-1]}"


PRINT_OPTIONS = ("numpy", "get_printoptions")
"""The function of NumPy's that tells how the texts of its numbers look."""
LRU_CACHE: Any = type(functools.lru_cache(len))
"""What `functools.lru_cache` and `functools.cache` make of a function."""


def constant_answer(module: str, name: str) -> str:
    """What a function gives now that its author marked with `assume_constant_result`.

    No other function is called, whatever a stored entry names, but those with a
    `functools.lru_cache`, and NumPy's own that only tells its settings. If a decorator wraps a
    marked function, both must give the same, because code may call either.
    """
    from npugx_cache.private.runtime import MARK_OF_CONSTANTS

    qualname, _, arguments = name.removesuffix(")").partition("(")
    named: Any = look_up(module, qualname)
    if (module, qualname) == PRINT_OPTIONS:
        marked = [named]
    else:
        inner = [each for each in function_chain(named) if each is not named]
        marked = [each for each in (named, *inner) if getattr(each, MARK_OF_CONSTANTS, False)]
    if not marked and type(named) is LRU_CACHE:
        marked = [named]
        known = named.cache_info()
        if known.maxsize is not None and 2 * known.currsize >= known.maxsize:
            raise NotPortable(f"{module}.{qualname} may soon forget what it remembers")
    if not marked or marked[0] is not named:
        raise NotPortable(f"{module}.{qualname} is not a function that gives a constant")
    given, by_name = ast.literal_eval(arguments) if arguments else ((), {})
    try:
        found = {answer_text(each(*given, **by_name)) for each in marked}
    except Exception as error:  # noqa: BLE001 - user code raises anything
        raise NotPortable(f"{module}.{qualname} raised {error!r}") from None
    if len(found) > 1:
        raise NotPortable(f"a decorator of {module}.{qualname} gives something else")
    return found.pop()


def asked_again(function: Any, arguments: str) -> str:
    """What a restore will find for a function that was traced; raises `NotPortable`."""
    module, qualname = function.__module__, function.__qualname__
    named = look_up(module, qualname)
    if not any(each is function for each in (named, *function_chain(named))):
        raise NotPortable(f"no name leads to {qualname}")
    return constant_answer(module, f"{qualname}({arguments})")


def answer_text(answer: object) -> str:
    """What a fact records of an answer; raises `NotPortable`."""
    return digest([repr(encode(answer))])[:32]


def pair_of(module: str, name: str) -> tuple[Any, Any]:
    """The classes that such a name is about; raises `NotPortable`."""
    modules, names = names_of_pair(module, name)
    cls, other = map(look_up, modules, names)
    return cls, other


def names_of_pair(module: str, name: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """The modules of the two classes, and their names in these."""
    qualname, _, other = name.partition(" < ")
    other_module, _, other_name = other.partition(":")
    return (module, other_module), (qualname, other_name)


def is_subclass(module: str, name: str) -> str:
    """Whether a class is derived from another, and what else `isinstance` would ask."""
    cls, other = pair_of(module, name)
    try:
        answer = str(issubclass(cls, other))
    except TypeError:  # what has this name now is no class
        return ""
    return answer if asks_for_classes(cls, other) else f"{answer}, and code of {type(other)}"


def asks_for_classes(cls: type, other: Any) -> bool:
    """Whether `isinstance(an object of cls, other)` asks for classes only, and runs no other code.

    torch's classes of parameters and buffers look into tensors; of other objects they ask what
    Python asks.
    """
    ask: Any = type(other).__instancecheck__
    if ask in (type.__instancecheck__, ABCMeta.__instancecheck__):
        return True
    import torch

    of_tensors = (type(torch.nn.Parameter), type(torch.nn.Buffer))
    return type(other) in of_tensors and not issubclass(cls, torch.Tensor)


def members_hash(module: str, name: str) -> str:
    """Of the names and values of an enumeration's members, in their order, and its `_missing_`.

    Python calls that method for a value that no member has.
    """
    cls: Any = look_up(module, name)
    if not isinstance(cls, enum.EnumMeta):
        return ""
    named: dict[str, Any] = dict(cls.__members__)
    members = [f"{each}={text_or_type(member.value)}" for each, member in named.items()]
    return digest([*members, *(code_hash(f.__code__) for f in functions_of_method(missing(cls)))])


def missing(cls: type) -> object:
    """The `_missing_` that an enumeration has, if it is of user code."""
    owner = next((base for base in cls.__mro__ if "_missing_" in vars(base)), enum.Enum)
    return None if is_covered_class(owner) else vars(owner)["_missing_"]


def special_hash(module: str, name: str) -> str:
    """Of the metaclass, of the classes in the MRO, and the special names that user code defines.

    With what stands under them: one that a library makes, as `functools.total_ordering` does, may
    be replaced by the user's.
    """
    found: Any = look_up(module, name)
    parts = [] if type(found) is type else [repr(identity(type(found)))]
    for cls in getattr(found, "__mro__", ())[:-1]:  # the last one is `object`
        space = vars(cls)
        names = sorted(SPECIAL & space.keys()) if is_watched_for_patches(cls) else []
        names = replaced_names(cls) if names and is_covered_class(cls) else names
        defined = (f"{each}={made_by(cls, each, without_fx(space[each]))}" for each in names)
        module = cls.__module__
        named = module if type(module) is str else ""
        parts.append(f"{named}.{cls.__qualname__}:{' '.join(defined)}")
    return digest(parts)[:32]


def is_watched_for_patches(cls: type) -> bool:
    """Whether special names of a class count: user code patches operators of tensors, too."""
    return cls is sys.modules["torch"].Tensor or not is_covered_class(cls)


def replaced_names(cls: type) -> list[str]:
    """Names of torch.Tensor under which user code has put something else.

    They are found with few calls. A name that torch does not have does not count.
    """
    space = vars(cls)
    functions = {name: m for name, m in space.items() if type(m) is types.FunctionType}
    members = functions.values()
    spaces = list(map(id, map(_GLOBALS, members)))
    homes = dict(zip(spaces, members, strict=True))
    own = {home for home, each in homes.items() if _is_covered_function(each)}
    found = [name for name, home in zip(functions, spaces, strict=True) if home not in own]
    found += [name for name, m in space.items() if type(m) not in _OF_PYTHON and not _is_covered(m)]
    return sorted(name for name in found if _had_name(cls, name))


_GLOBALS = attrgetter("__globals__")


def _is_covered(member: object) -> bool:
    function = unwrap(member)
    if type(function) is types.FunctionType:
        return _is_covered_function(function)
    return is_covered_class(type(function))


def _is_covered_function(function: types.FunctionType) -> bool:
    return is_covered_module(str(function.__globals__.get("__name__")))


def _had_name(cls: type, name: str) -> bool:
    """Whether torch.Tensor has a name by its source, or inherits the name."""
    if name in SPECIAL or any(name in vars(base) for base in cls.__mro__[1:]):
        return True
    try:
        return name in _names_in_source()
    except OSError:  # there is no source
        return True


@functools.cache
def _names_in_source() -> frozenset[str]:
    import inspect
    import re

    source = inspect.getsource(sys.modules["torch._tensor"])
    return frozenset(re.findall(r"^    (?:def )?(\w+)[(:= ]", source, re.MULTILINE))


_OF_PYTHON = frozenset(
    {
        *(types.FunctionType, types.WrapperDescriptorType, types.MethodDescriptorType),
        *(types.BuiltinFunctionType, types.ClassMethodDescriptorType),
        *(types.GetSetDescriptorType, type(None)),
    }
)


def made_by(cls: type, name: str, member: object) -> str:
    """The qualified name in the source of the function behind an attribute of a class.

    A `function_without_name` counts by its code as well. An attribute without a function behind
    the attribute counts by its type; it is asked for nothing, because it may be a proxy that runs
    code of the user's. `member` is the attribute, `without_fx`.
    """
    function = unwrap(member)
    if type(function) is not types.FunctionType:
        return type(member).__name__
    made = function.__code__.co_qualname
    nameless = function_without_name(cls, name, member)
    return made if nameless is None else f"{made} {code_hash(nameless.__code__)}"


_OPERATORS = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow"),
    *("lshift", "rshift", "and", "xor", "or"),
)
SPECIAL = frozenset(
    f"__{name}__"
    for name in (
        *(f"{side}{name}" for name in _OPERATORS for side in ("", "r", "i")),
        *("neg", "pos", "abs", "invert", "round", "trunc", "floor", "ceil", "index"),
        *("int", "float", "complex", "bool", "len", "hash", "str", "repr", "format"),
        *("eq", "ne", "lt", "le", "gt", "ge", "contains", "iter", "next", "reversed"),
        *("getitem", "setitem", "delitem", "missing", "length_hint", "class_getitem"),
        *("new", "init", "post_init", "call", "enter", "exit", "copy", "deepcopy"),
        *("reduce", "reduce_ex", "getstate", "setstate", "getnewargs", "getnewargs_ex"),
        *("getattr", "getattribute", "setattr", "delattr", "get", "set", "delete"),
        *("instancecheck", "subclasscheck", "torch_function"),
    )
)
"""Names that Python or torch looks up in a class by itself."""


# --- all that a function can reach, for keys


def reachable_functions(function: types.FunctionType) -> list[types.FunctionType]:
    """A function and the functions of user code that it can reach by name, in a fixed order."""
    found: list[types.FunctionType] = []
    waiting: list[object] = [function]
    while waiting:
        each = unwrap(waiting.pop())
        if not isinstance(each, types.FunctionType) or is_covered_module(module_of(each)):
            continue
        if any(each is other for other in found):
            continue
        found.append(each)
        names = sorted(set(names_in(each.__code__)))
        values = [each.__globals__.get(name) for name in names]
        modules = list(filter(_is_user_module, values))
        waiting += [*values, *(vars(module).get(name) for module in modules for name in names)]
        waiting += [contents(cell) for cell in each.__closure__ or ()]
    return sorted(found, key=lambda each: (module_of(each), each.__qualname__, _hash_of(each)))


def reaches(function: types.FunctionType, objects: Iterable[object]) -> bool:
    """Whether a function may read one of these objects, or an attribute or element of theirs.

    The function reaches what stands in its globals under the names in its code, in its closure, and
    in what these hold; also through the functions of user code that it reaches by name. We follow
    no modules, functions and classes further than by name. True if there is too much to look at.
    """
    waiting: list[object] = []
    for each in reachable_functions(function):
        names = set(names_in(each.__code__))
        spaces = [each.__globals__]
        spaces += [vars(m) for m in map(each.__globals__.get, names) if _is_user_module(m)]
        waiting += [space[name] for space in spaces for name in names if name in space]
        waiting += [contents(cell) for cell in each.__closure__ or ()]
    wanted, seen = set(map(id, objects)), set[int]()
    while waiting and len(seen) < _MAX_REACHED:
        value = waiting.pop()
        if id(value) not in seen and not isinstance(value, _FOLLOWED_BY_NAME):
            seen.add(id(value))
            waiting += gc.get_referents(value)
    return bool(waiting) or not wanted.isdisjoint(seen)


_MAX_REACHED = 20_000
_FOLLOWED_BY_NAME = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)


def _is_user_module(value: object) -> bool:
    return isinstance(value, types.ModuleType) and not is_covered_module(value.__name__)


def reachable_hash(function: types.FunctionType) -> str:
    """Hash of a function with the functions of user code that it can reach by name."""
    return digest(
        f"{each.__module__}.{each.__qualname__}={_hash_of(each)}"
        for each in reachable_functions(function)
    )


def names_in(code: types.CodeType) -> Iterator[str]:
    """The names that code looks up, functions inside it included."""
    for each in all_code(code):
        yield from each.co_names
