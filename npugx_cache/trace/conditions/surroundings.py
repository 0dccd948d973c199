"""What a trace depended on and Dynamo does not guard: the environment, names that may be hidden.

Each becomes a node and a check of the guard tree, so it is compared at every call like the rest.
"""

from __future__ import annotations

import builtins
import dis
import linecache
import re
import sys
from typing import TYPE_CHECKING, Any

from npugx_cache import location
from npugx_cache.conditions import Kind, Step, set_order
from npugx_cache.conditions.data import CALL
from npugx_cache.conditions.process import ANSWERS, recorded
from npugx_cache.config import environment_variable
from npugx_cache.portable import NotPortable, code_hash, encode
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.trace.conditions.source_facts import is_covered, names_of
from npugx_cache.trace.refuse import NotEager

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Iterator

    from npugx_cache.portable import Plain
    from npugx_cache.trace.conditions.builder import TreeBuilder
    from npugx_cache.trace.conditions.source_facts import Owners
    from npugx_cache.trace.observe.set_history import Leaf, Walk, Walks

_READS_ENVIRONMENT = frozenset({"environ", "getenv"})
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{2,63}")


def add_environment(builder: TreeBuilder, codes: Iterable[types.CodeType]) -> None:
    """Guard the environment variables that the traced code may have read.

    Dynamo folds `os.environ.get(name)` into a constant. The name is a constant of some function on
    the way, so every constant that looks like the name of a variable counts once any of them reads
    the environment at all.
    """
    unique = set(codes)
    if not any(_READS_ENVIRONMENT & set(code.co_names) for code in unique):
        return
    for name in sorted({name for code in unique for name in _variable_names(code)}):
        node = builder.step(-1, Step.ENVIRONMENT, name)
        builder.check(node, Kind.EQUALS, encode(environment_variable(name)))


def add_answers(
    builder: TreeBuilder, codes: Iterable[types.CodeType], questions: Iterable[str]
) -> None:
    """Guard what Dynamo asked of the process and folded into the graph, such as its rank.

    Known by the names in the traced code, and by the functions that it reached by other names;
    `questions` come on top.
    """
    names = {*questions}
    names |= {name for code in set(codes) for name in code.co_names}
    names |= {getattr(value, "__name__", "") for value in builder.functions()}
    if "rank" in names and builder.has_process_group():
        names.add("get_rank")  # `group.rank()` leaves no guard either
    for name in sorted(names & ANSWERS.keys()):
        node = builder.step(-1, Step.ANSWER, name)
        builder.check(node, Kind.EQUALS, recorded(name))


def refuse_names(codes: Iterable[types.CodeType], owners: Owners) -> None:
    """Raises where user code asks what Dynamo folds and no guard can tell: by name, at its line.

    `NotPortable` for `hash`, which this process alone may keep; `NotEager` for what may change
    while it lives.
    """
    for code in set(codes):
        written = not code.co_filename.startswith("<") and not is_covered(code, owners[id(code)])
        for line, name in _refused_names(code) if written else ():
            text = linecache.getline(code.co_filename, line).strip()
            place = location.Place(code.co_filename, line, code.co_name, text)
            change = "compute it outside the cached function and pass it in"
            reason = location.reason(_REFUSED[name], place, change)
            raise NotPortable(reason) if name == "hash" else NotEager(reason)


_REFUSED = {
    "hash": "hash() gives another number in another process",
    "__bases__": "the bases of a class have no guard",
    "__base__": "the base of a class has no guard",
    "__subclasses__": "the subclasses of a class have no guard",
    **{
        f"co_{name}": "the name and the place of code have no guard"
        for name in ("name", "qualname", "filename", "firstlineno", "linetable", "lines")
    },
}


def _refused_names(code: types.CodeType) -> Iterator[tuple[int, str]]:
    for each in dis.get_instructions(code):
        is_global = each.opname == "LOAD_GLOBAL"
        asked = is_global if each.argval == "hash" else each.opname in _LOADS_ATTRIBUTE
        if asked and each.argval in _REFUSED and each.positions is not None:
            yield each.positions.lineno or code.co_firstlineno, each.argval


_LOADS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


def _variable_names(code: types.CodeType) -> Iterator[str]:
    reads = bool(_READS_ENVIRONMENT & set(code.co_names))
    for constant in code.co_consts:
        if isinstance(constant, str) and (_VARIABLE.fullmatch(constant) or (reads and constant)):
            yield constant


def add_hidden_names(builder: TreeBuilder, codes: Iterable[types.CodeType], owners: Owners) -> None:
    """Guard that no global hides a builtin that the traced code uses: Dynamo looks at one only."""
    for code in sorted(set(codes), key=lambda code: (code.co_filename, code.co_firstlineno)):
        functions = owners[id(code)]
        if is_covered(code, functions):
            continue
        for function in functions[:1]:
            module = sys.modules.get(function.__module__)
            if module is None or vars(module) is not function.__globals__:
                continue
            for name in sorted(_builtin_names(code, function.__globals__)):
                namespace = builder.step(-1, Step.NAMESPACE, function.__module__)
                builder.check(namespace, Kind.NOT_CONTAINS, name)


def _builtin_names(code: types.CodeType, frame_globals: dict[str, Any]) -> set[str]:
    used = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    return {name for name in used if name not in frame_globals and hasattr(builtins, name)}


def attribute_lookups(
    builder: TreeBuilder, codes: Iterable[types.CodeType]
) -> Iterator[tuple[type, str]]:
    """Names that were looked up on guarded objects and may be found in, or hidden by, a class.

    Those of the tree, and every name in the traced code that a class of the user's has: a property
    that Dynamo inlined leaves no guard on the name it was found by.
    """
    yield from builder.attribute_lookups()
    names = {name for code in set(codes) for name in code.co_names}
    for cls in builder.guarded_classes():
        bodies = [vars(base) for base in cls.__mro__ if not is_covered_module(base.__module__)]
        yield from ((cls, name) for name in names if any(name in body for body in bodies))


# Adds conditions to a guard tree: the order of each set that the trace walked.


def add_orders(builder: TreeBuilder, walks: Walks, owners: Owners) -> None:
    """Raises `NotPortable` for a walk whose order can't be checked in another process."""
    for key, walk in walks.noted.items():
        if walk.made is None:
            raise NotPortable(_reason(walk))
        if key == walks.indifferent or set_order.is_same_everywhere(walk.made):
            continue

        def leaf(place: int, walk: Walk = walk) -> Plain:
            return _leaf(builder, walks.leaves[place], owners, walk)

        made = set_order.replaced(walk.made, leaf)
        builder.check(CALL, Kind.ORDER, [made, walk.order])


def to_flip(walks: Walks) -> str | None:
    """The one set of two elements that the trace itself filled, if there is but one.

    A trace that walks it the other way round shows whether its order matters at all.
    """
    keys = [
        key
        for key, walk in walks.noted.items()
        if walk.made is not None
        and not set_order.is_same_everywhere(walk.made)
        and not set_order.nodes_in([walk.made, walk.order])
    ]
    return keys[0] if len(keys) == 1 and len(walks.noted[keys[0]].order) == 2 else None


def _reason(walk: Walk) -> str:
    what = "a set is walked, the order of which can't be checked in another process"
    return location.reason(what, walk.place, "walk sorted(...) of it")


def _leaf(builder: TreeBuilder, leaf: Leaf, owners: Owners, walk: Walk) -> Plain:
    if leaf.code is None:
        return ["node", builder.node(leaf.source)]
    code = code_hash(leaf.code)
    for module, name in names_of(leaf.code, owners.get(id(leaf.code), [])):
        try:
            if set_order.constant(module, name, code, leaf.place) is leaf.value:
                return ["constant", module, name, code, leaf.place]
        except NotPortable:
            continue
    raise NotPortable(_reason(walk))
