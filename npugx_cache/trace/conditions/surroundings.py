"""Tells from the traced code, and from the tree of guards, what Dynamo read without a guard.

These observations need no hook, because the code names what it asks for. `refuse_names` makes none:
each of its refusals is raised at once, at its line of the code.
"""

from __future__ import annotations

import builtins
import dis
import linecache
import re
import sys
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache import location
from npugx_cache.backend.engines import LIBRARY
from npugx_cache.conditions import Step
from npugx_cache.conditions.process import ANSWERS
from npugx_cache.portable import OnlyHere, is_covered_class, module_of
from npugx_cache.trace.conditions.source_facts import is_covered
from npugx_cache.trace.observe.observation import Observation, Question
from npugx_cache.trace.refuse import NotEager

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Iterator

    from torch import fx

    from npugx_cache.trace.conditions.builder import TreeBuilder
    from npugx_cache.trace.conditions.source_facts import Owners

_READS_ENVIRONMENT = frozenset({"environ", "getenv"})
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{2,63}")


def environment_of(codes: Iterable[types.CodeType]) -> Iterator[Observation]:
    """The environment variables that the traced code may have read.

    Dynamo may fold `os.getenv(name)` into a constant. The name is a constant of some function on
    the way, so every constant that looks like the name of a variable counts once any of them reads
    the environment at all.
    """
    unique = set(codes)
    if any(_READS_ENVIRONMENT & set(code.co_names) for code in unique):
        for name in sorted({name for code in unique for name in _variable_names(code)}):
            yield Observation(Question.ENVIRONMENT, name)


def answers_to(
    builder: TreeBuilder, codes: Iterable[types.CodeType], questions: Iterable[str]
) -> Iterator[Observation]:
    """What Dynamo asked of the process and folded into the graph, such as its rank.

    We know a question by the names that the traced code reached; `questions` come on top.
    """
    names = {*questions, *_names_reached(builder, codes)}
    if "rank" in names and (builder.has_process_group() or builder.meshes):
        names.add("get_rank")  # `group.rank()` leaves no guard either
    if builder.meshes and not names.isdisjoint(_PLACE_IN_MESH):
        names.add("get_rank")
    for name in sorted(names & ANSWERS.keys()):
        yield Observation(Question.ANSWER, name)


def _names_reached(builder: TreeBuilder, codes: Iterable[types.CodeType]) -> set[str]:
    """The names in the traced code, and those of the functions that it reached by other names."""
    names = {name for code in set(codes) for name in code.co_names}
    return names | {getattr(value, "__name__", "") for value in builder.functions()}


_PLACE_IN_MESH = frozenset(
    {"get_local_rank", "get_coordinate", "_sym_get_coordinate", "_coordinate_on_dim", "_rank"}
)


def threads_for(codes: Iterable[types.CodeType], graph: fx.GraphModule | None) -> int | None:
    """The number of threads, if the traced code asked for it or Inductor has it compiled in."""
    made = graph.meta.get(LIBRARY) if graph is not None else None
    asks = made is not None and made.library.engine == "inductor"
    asks = asks or any("get_num_threads" in code.co_names for code in codes)
    return torch.get_num_threads() if asks else None


def refuse_names(codes: Iterable[types.CodeType], root: types.CodeType, owners: Owners) -> None:
    """Refuse user code that asks for something that Dynamo makes a constant without a guard.

    We know such code by the names in it. Of code without a file, which libraries generate, only
    the traced function itself counts (`root`). Raises `OnlyHere` for `hash`, which stays the
    same in this process, and `NotEager` for what may change while the process lives.
    """
    for code in set(codes):
        written = code is root or not code.co_filename.startswith("<")
        written = written and not is_covered(code, owners[id(code)])
        for line, name in _refused_names(code) if written else ():
            text = linecache.getline(code.co_filename, line).strip()
            place = location.Place(code.co_filename, line, code.co_name, text)
            change = "compute it outside the cached function and pass it in"
            reason = location.reason(_REFUSED[name], place, change)
            raise OnlyHere(reason) if name == "hash" else NotEager(reason)


_REFUSED = {
    "hash": "hash() gives another number in another process",
    "__bases__": "the bases of a class have no guard",
    "__base__": "the base of a class has no guard",
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


def builtins_used(
    codes: Iterable[types.CodeType], function: types.FunctionType, owners: Owners
) -> Iterator[Observation]:
    """The builtins that the traced code uses and that a global may hide.

    Dynamo looks for the global and installs no guard where there is none. `function` is the traced
    function itself. The globals of code that somebody executed may be a dict of no module.
    """
    for code in sorted(set(codes), key=lambda code: (code.co_filename, code.co_firstlineno)):
        functions = owners[id(code)]
        if is_covered(code, functions):
            continue
        for owner in [function] if code is function.__code__ else functions[:1]:
            place = _step_to_globals(owner, function)
            for name in sorted(_builtin_names(code, owner.__globals__)) if place else ():
                yield Observation(Question.HIDDEN, place, name)


def _step_to_globals(
    owner: types.FunctionType, function: types.FunctionType
) -> tuple[Step, str | None] | None:
    module = sys.modules.get(module_of(owner))
    if module is not None and vars(module) is owner.__globals__:
        return Step.NAMESPACE, module_of(owner)
    return (Step.OWN_GLOBALS, None) if owner.__globals__ is function.__globals__ else None


def _builtin_names(code: types.CodeType, frame_globals: dict[str, Any]) -> set[str]:
    used = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    return {name for name in used if name not in frame_globals and hasattr(builtins, name)}


def lookups_of(builder: TreeBuilder, codes: Iterable[types.CodeType]) -> Iterator[Observation]:
    """What was looked up in the classes and the enumerations that the tree of guards leads to.

    In classes: the names in the tree that a class may hold or hide, and every name in the traced
    code that a class of the user's has, because a property that Dynamo inlined leaves no guard on
    the name it was found by.
    """
    for cls, name in builder.attribute_lookups():
        yield Observation(Question.NAME, cls, name)
    names = {name for code in set(codes) for name in code.co_names}
    for cls in builder.guarded_classes():
        bodies = [vars(base) for base in cls.__mro__ if not is_covered_class(base)]
        for name in names:
            if any(name in body for body in bodies):
                yield Observation(Question.NAME, cls, name)
    for cls in builder.enums():
        yield Observation(Question.MEMBERS, cls)
