"""Records which code a trace went through, under names by which another process finds the code."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import types
from typing import TYPE_CHECKING

from npugx_cache import location
from npugx_cache.conditions import Check, Kind
from npugx_cache.conditions.source_facts import (
    fact,
    file_hash,
    function_hash,
)
from npugx_cache.portable import (
    NotPortable,
    OnlyHere,
    body_of,
    function_chain,
    is_named,
    look_up,
    module_of,
    name_of,
    unwrap,
)
from npugx_cache.portable.pinned import is_covered_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class Owners(dict[int, list[types.FunctionType]]):
    """The functions that run a code object, by the id of the code object: of a whole trace.

    To look for references, Python compares each reference of each object with each of those that
    are wanted. To look for many takes longer that way than to ask all objects, in one pass.
    """

    def __init__(self, codes: Iterable[types.CodeType]) -> None:
        wanted = {id(code): code for code in codes}
        super().__init__((each, []) for each in wanted)
        if not wanted:
            return
        is_few = len(wanted) <= _FEW
        for found in gc.get_referrers(*wanted.values()) if is_few else gc.get_objects():
            if type(found) is types.FunctionType and id(found.__code__) in self:
                self[id(found.__code__)].append(found)


_FEW = 8
"""For how many objects it is faster to ask Python for what refers to them."""


class SourceNotFound(OnlyHere):
    """No name leads to traced code, and no file has it, as where `exec` or a notebook made it."""


def facts_of(
    codes: Iterable[types.CodeType],
    root: types.CodeType,
    owners: Owners,
    held: frozenset[int] = frozenset(),
) -> tuple[Check, ...]:
    """Facts for every code object of a trace; raises `NotPortable` if one can't be re-checked.

    `root` is the traced function itself, whose code is a factor of the fingerprint. `held` has the
    ids of code that a condition holds already (`held_by_classes`).
    """
    traced = {id(code): code for code in codes}
    return tuple(
        sorted(
            {
                _fact_of(code, _called_functions(owners[each], traced), root)
                for each, code in traced.items()
                if code is not root and each not in held and not is_covered(code, owners[each])
            }
        )
    )


def _called_functions(
    functions: list[types.FunctionType], traced: Mapping[int, types.CodeType]
) -> list[types.FunctionType]:
    """Of functions with one code, those for which the trace went through all that they wrap.

    A decorator's code is run by functions that have nothing to do with the trace. A fact under the
    name of such a function would name the wrong function, and would fail when that one is edited.
    """
    if len(functions) < 2:
        return functions
    called = []
    for function in functions:
        with contextlib.suppress(NotPortable):  # the function leads to very many others
            if all(id(each.__code__) in traced for each in function_chain(function)):
                called.append(function)
    return called or functions


def held_by_classes(guarded: Iterable[type]) -> frozenset[int]:
    """The ids of generated code in classes that no name leads to: what they define is guarded.

    The class of a `torch.fx.GraphModule` is made for the one object; its forward has no file.
    """
    members = (
        unwrap(each) for cls in guarded if not is_named(cls) for each in body_of(cls).values()
    )
    codes = (each.__code__ for each in members if isinstance(each, types.FunctionType))
    return frozenset(id(code) for code in codes if code.co_filename.startswith("<"))


def is_covered(code: types.CodeType, functions: list[types.FunctionType]) -> bool:
    """Whether the code belongs to torch, to this package or to Python's standard library.

    The file says so, and the globals of the functions that run the code. The `__module__` of a
    function does not: `functools.wraps` makes that the module of what a wrapper wraps.
    """
    if code.co_filename.startswith("<frozen "):
        return True
    home = _module_of_file(code.co_filename)
    if home is not None:
        spaces = (str(each.__globals__.get("__name__")) for each in functions)
        return all(map(is_covered_module, (home, *spaces)))
    modules = [module for f in functions for module in _homes(f)]
    return all(is_covered_module(module or "") for module in modules or [""])


def _homes(function: types.FunctionType) -> list[str]:
    """The modules that own a function.

    For a generated function, such as the `__new__` of a namedtuple, they are the modules of the
    class that the function was generated for.
    """
    name = module_of(function)
    module = sys.modules.get(name)
    if module is not None and vars(module) is function.__globals__:
        return [name]
    owner = str(function.__globals__.get("__name__"))
    return [module_of(cls) for cls in _classes_with(function)] or [owner]


def is_written_by_users(code: types.CodeType, frame_globals: Mapping[str, object]) -> bool:
    """Whether code is of no file of torch, this package or the standard library.

    Use this for code that was executed and not traced. We go by the file name, because `__module__`
    lies: a wrapper made by `contextlib.contextmanager` has the module of the wrapped function. Code
    that was generated is of its globals.
    Torch computes symbolic sizes with SymPy. Which functions of SymPy's run depends on what it
    remembers, and a restart need not import them.
    """
    if code.co_filename.startswith("<frozen "):
        return False
    home = _module_of_file(code.co_filename) or str(frame_globals.get("__name__"))
    return not is_covered_module(home) and home.partition(".")[0] not in _OF_TORCHS_CODE


_OF_TORCHS_CODE = frozenset({"sympy", "mpmath", "typing_extensions"})
"""Packages that torch's own code calls."""


def _place_of(code: types.CodeType) -> location.Place:
    return location.Place(code.co_filename, code.co_firstlineno, code.co_name, "")


def _fact_of(
    code: types.CodeType, functions: list[types.FunctionType], root: types.CodeType
) -> Check:
    for module, name in names_of(code, functions):
        try:
            chain = function_chain(look_up(module, name))
        except NotPortable:
            continue
        if any(f.__code__ is code or _contains(f.__code__, code) for f in chain):
            return fact(Kind.FUNCTION, function_hash, module, name)
    module = _module_of_file(code.co_filename) or ""
    found = fact(Kind.FILE, file_hash, module, code.co_qualname)
    if not found.arg[-1]:
        what = (
            f"the source of {code.co_qualname} can't be found again for the graph of the function"
        )
        change = "define the function in the file of a module"
        raise SourceNotFound(location.reason(what, _place_of(root), change))
    return found


def names_of(
    code: types.CodeType, functions: list[types.FunctionType]
) -> Iterator[tuple[str, str]]:
    """Names under which another process may find the code.

    They are the name of its function, the name of the function around it, and the name in a class
    that holds the function. A decorator's code is run by functions of many modules: names in the
    module that the code was written in come first, because a restart need not load the others.
    """
    home = _module_of_file(code.co_filename)
    names = sorted({(module_of(each), each.__qualname__) for each in functions})
    outer, nested, _ = code.co_qualname.partition(".<locals>")
    yield from (named for named in names if named[0] == home)
    if nested and home:
        yield home, outer
    yield from (named for named in names if named[0] != home)
    for function in functions:
        for cls in _classes_with(function):
            yield module_of(cls), f"{name_of(cls) or cls.__qualname__}.{function.__name__}"
    if nested:
        yield from ((module, outer) for module, _ in names if module and module != home)


def _classes_with(function: types.FunctionType) -> Iterator[type]:
    """Classes whose body holds the function, as it is or as a method of another kind."""
    descriptors = (staticmethod, classmethod, property)
    holders: list[object] = [function]
    holders += [ref for ref in gc.get_referrers(function) if isinstance(ref, descriptors)]
    for holder in holders:
        for namespace in gc.get_referrers(holder):
            if isinstance(namespace, dict) and namespace.get(function.__name__) is holder:
                yield from (ref for ref in gc.get_referrers(namespace) if isinstance(ref, type))


def _module_of_file(filename: str) -> str | None:
    name = _modules_by_file(len(sys.modules)).get(filename)
    if name is not None and getattr(sys.modules.get(name), "__file__", None) != filename:
        _modules_by_file.cache_clear()  # another module has come in its place
        name = _modules_by_file(len(sys.modules)).get(filename)
    return name


@functools.lru_cache(maxsize=1)
def _modules_by_file(count: int) -> dict[str, str]:
    """The first module of each file. A trace asks for many files, with thousands of modules."""
    del count  # while it is the same, nothing was imported
    found: dict[str, str] = {}
    for name in tuple(sys.modules):
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str):
            found.setdefault(file, name)
    return found


def _contains(outer: types.CodeType, code: types.CodeType) -> bool:
    return any(
        constant is code or _contains(constant, code)
        for constant in outer.co_consts
        if isinstance(constant, types.CodeType)
    )
