"""Source facts: the Python code that a trace went through, in a form that a restore can re-check.

A guard tree says nothing about code, because Dynamo inlines a helper and forgets its text. Each
fact names one piece of code and its hash. A check of the fact hashes the code that is loaded now,
so it sees an edit, another version of a package, and a function that was patched at run time. Code
of torch and of Python has no facts, because their versions are in the key.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from npugx_cache.conditions import class_facts
from npugx_cache.portable import (
    NotPortable,
    Plain,
    code_hash,
    contents,
    digest,
    encode,
    function_chain,
    identity,
    look_up,
    texts_in,
    unwrap,
)
from npugx_cache.portable.pinned import is_covered_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FUNCTION = "function"
FILE = "file"
OPERATOR = "operator"
LOOKUP = "lookup"
TENSOR_METHOD = "tensor method"
GROUP = "process group"
SUBCLASS = "subclass"
MEMBERS = "members"
SPECIAL_NAMES = "special names"


class SourceFact(NamedTuple):
    """`name` in `module` had this `hash`.

    kind FUNCTION: the code of module.name as it is loaded. FILE: all code objects of that qualname
    in the module's source file, for code that no name leads to (a lambda in a list). OPERATOR: the
    schema of the custom operator `name`; `module` is its namespace. LOOKUP: the class in which
    `Class.attribute` is found, or "". TENSOR_METHOD: the method `name` of torch.Tensor.
    SUBCLASS, MEMBERS and SPECIAL_NAMES: see `class_facts`.
    GROUP: the ranks of the process group `name`: their number is folded into the sizes of a graph,
    and the name may have been found by them.
    """

    kind: str
    module: str
    name: str
    hash: str


def failures(facts: Iterable[SourceFact]) -> Iterator[str]:
    """Facts that no longer hold, in words."""
    for fact in facts:
        try:
            now = _HASHES[fact.kind](fact.module, fact.name)
        except NotPortable as error:
            yield f"source of {fact.module}.{fact.name} can't be checked: {error}"
        else:
            if now != fact.hash:
                yield f"{_WORDS.get(fact.kind, 'source of')} {fact.module}.{fact.name} changed"


def hold(facts: Iterable[SourceFact]) -> bool:
    return next(failures(facts), None) is None


def texts(facts: Iterable[SourceFact], code: types.CodeType) -> frozenset[str | bytes]:
    """The texts that stand in this code and in that of the functions, as it is loaded now."""
    codes = [code]
    for fact in facts:
        if fact.kind == FUNCTION:
            with contextlib.suppress(NotPortable):
                chain = function_chain(look_up(fact.module, fact.name))
                codes += [function.__code__ for function in chain]
    return texts_in(codes)


def to_plain(facts: Iterable[SourceFact]) -> list[Plain]:
    return [list(fact) for fact in facts]


def from_plain(rows: Any) -> tuple[SourceFact, ...]:
    facts = tuple(map(SourceFact._make, rows))  # raises TypeError for another number of fields
    if not {str}.issuperset(map(type, itertools.chain.from_iterable(facts))):
        raise ValueError("a field of a source fact is no str")
    if unknown := {fact.kind for fact in facts} - _HASHES.keys():
        raise ValueError(f"unknown kinds of source facts: {sorted(unknown)}")
    return facts


def operator_fact(namespace: str, name: str, overload: str) -> SourceFact:
    full = f"{name}.{overload}"
    return SourceFact(OPERATOR, namespace, full, _operator_schema(namespace, full))


def group_fact(name: str) -> SourceFact:
    return SourceFact(GROUP, "torch.distributed", name, _group_ranks("", name))


def _group_ranks(_: str, name: str) -> str:
    from npugx_cache.private import process_groups

    group = process_groups.find(name)
    if group is None:
        raise NotPortable(f"there is no process group {name!r}")
    return f"ranks {process_groups.facts_of(group)[-1]}"


def lookup_facts(lookups: Iterable[tuple[type, str]]) -> tuple[SourceFact, ...]:
    """Where attributes of guarded objects are found; classes that no name leads to are left out."""
    facts = set()
    for cls, name in set(lookups):
        module, full = cls.__module__, f"{cls.__qualname__}.{name}"
        try:
            if look_up(module, cls.__qualname__) is cls:
                facts.add(SourceFact(LOOKUP, module, full, _provider(module, full)))
        except NotPortable:
            continue
    return tuple(sorted(facts))


def class_facts_of(
    pairs: Iterable[tuple[type, type]], enums: Iterable[type], met: Iterable[type]
) -> tuple[SourceFact, ...]:
    """What was asked of pairs of classes, members of enumerations, special names of those met."""
    facts = [SourceFact(SUBCLASS, *row) for row in class_facts.subclasses(pairs)]
    facts += [SourceFact(MEMBERS, *row) for row in class_facts.members(enums)]
    facts += [SourceFact(SPECIAL_NAMES, *row) for row in class_facts.special_names(met)]
    return tuple(sorted(facts))


def tensor_method_facts(names: Iterable[str]) -> tuple[SourceFact, ...]:
    return tuple(
        SourceFact(TENSOR_METHOD, "torch.Tensor", name, _tensor_method("torch.Tensor", name))
        for name in sorted(names)
    )


def reachable_functions(function: types.FunctionType) -> list[types.FunctionType]:
    """A function and the functions of user code that it can reach by name, in a fixed order."""
    found: list[types.FunctionType] = []
    waiting: list[object] = [function]
    while waiting:
        each = unwrap(waiting.pop())
        if not isinstance(each, types.FunctionType) or is_covered_module(each.__module__ or ""):
            continue
        if any(each is other for other in found):
            continue
        found.append(each)
        names = sorted(set(names_in(each.__code__)))
        values = [each.__globals__.get(name) for name in names]
        modules = [value for value in values if isinstance(value, types.ModuleType)]
        modules = [module for module in modules if not is_covered_module(module.__name__)]
        waiting += [*values, *(vars(module).get(name) for module in modules for name in names)]
        waiting += [contents(cell) for cell in each.__closure__ or ()]
    return sorted(found, key=lambda each: (each.__module__, each.__qualname__, _hash_of(each)))


def reachable_hash(function: types.FunctionType) -> str:
    """Hash of a function with the functions of user code that it can reach by name."""
    return digest(
        f"{each.__module__}.{each.__qualname__}={_hash_of(each)}"
        for each in reachable_functions(function)
    )


def names_in(code: types.CodeType) -> Iterator[str]:
    """The names that code looks up, functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


# --- hashes of code that was found again


def function_hash(module: str, name: str) -> str:
    chain = function_chain(look_up(module, name))
    if not chain:
        raise NotPortable(f"{module}.{name} is not a Python function")
    return digest(map(_hash_of, chain))[:32]


def _hash_of(function: types.FunctionType) -> str:
    """Code and defaults: a default that Dynamo folded into the graph has no guard of its own."""
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return code_hash(function.__code__) + "".join(map(_default_text, defaults))


def _default_text(value: object) -> str:
    try:
        return repr(encode(value))
    except NotPortable:
        return type(value).__qualname__


def _provider(module: str, full: str) -> str:
    """The first class of the MRO that has the attribute, and what kind of descriptor it is there.

    With the name of the function in it, which a library may have made (`_replace` of a namedtuple);
    for one of torch also its code.
    """
    qualname, _, name = full.rpartition(".")
    for cls in getattr(look_up(module, qualname), "__mro__", ()):
        if name in vars(cls):
            found = vars(cls)[name]
            kind = type(found).__name__ if hasattr(type(found), "__get__") else ""
            made = class_facts.made_by(found) if kind else ""
            member = unwrap(found)
            covered = is_covered_module(cls.__module__)
            code = code_hash(member.__code__) if isinstance(member, types.FunctionType) else ""
            return f"{cls.__module__}.{cls.__qualname__} {kind} {made} {code if covered else ''}"
    return ""


def _tensor_method(_: str, name: str) -> str:
    import torch

    return repr(identity(getattr(torch.Tensor, name)))


def file_hash(module: str, qualname: str) -> str:
    """Hashes of all code objects of that qualname in the module's source file; "" if none."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if not path:
        return ""
    try:
        whole = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return ""
    return ",".join(sorted({code_hash(code)[:16] for code in _all_code(whole, qualname)}))


def _all_code(code: types.CodeType, qualname: str) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            if constant.co_qualname == qualname:
                yield constant
            yield from _all_code(constant, qualname)


def _operator_schema(namespace: str, name: str) -> str:
    from npugx_cache.portable import resolve_op
    from npugx_cache.private.runtime import schema_text

    base, _, overload = name.partition(".")
    return schema_text(resolve_op(namespace, base, overload))


_HASHES = {
    FUNCTION: function_hash,
    FILE: file_hash,
    OPERATOR: _operator_schema,
    LOOKUP: _provider,
    TENSOR_METHOD: _tensor_method,
    GROUP: _group_ranks,
    SUBCLASS: class_facts.is_subclass,
    MEMBERS: class_facts.members_hash,
    SPECIAL_NAMES: class_facts.special_hash,
}
_WORDS = {
    OPERATOR: "schema of operator",
    LOOKUP: "where to find",
    TENSOR_METHOD: "code of",
    GROUP: "ranks of process group",
    SUBCLASS: "the answer to",
    MEMBERS: "a member of",
    SPECIAL_NAMES: "the special methods of",
}
