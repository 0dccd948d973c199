"""Dynamo's rewritten bytecode as a Frame: every process-local thing in it gets a portable name."""

from __future__ import annotations

import dis
import itertools
import marshal
import types
from typing import TYPE_CHECKING, Any

from npugx_cache import frame
from npugx_cache._compat.runtime import FRAME_SHIMS
from npugx_cache.guards import Step
from npugx_cache.portable import NotPortable, Plain, encode, identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npugx_cache.trace.roots import Roots

_GLOBAL_INSTRUCTIONS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})


def portable_frame(
    code: types.CodeType, graph_name: str | None, roots: Roots, imports: dict[str, str]
) -> frame.Frame:
    """Raises `NotPortable` for a frame that needs what only this process has."""
    names: dict[str, Plain] = {}
    plain_globals = []
    used = {
        instruction.argval
        for instruction in _instructions(code)
        if instruction.opname in _GLOBAL_INSTRUCTIONS
    }
    for name in sorted(used):
        if name == graph_name:
            names[name] = frame.GRAPH
            continue
        step, arg = roots.of(name, imports)
        if step is Step.GLOBAL:
            plain_globals.append(name)
        else:
            names[name] = _named(code, name, step, arg)
    stripped, constants = _without_live_constants(code, ())
    # The names hold counters and addresses; equal frames must have equal bytes.
    placeholders = {name: f"__npugx_{i}" for i, name in enumerate(names)}
    return frame.Frame(
        code=marshal.dumps(_renamed(stripped, placeholders)),
        names={placeholders[name]: data for name, data in names.items()},
        globals=tuple(plain_globals),
        constants=tuple(constants),
    )


def _named(code: types.CodeType, name: str, step: Step, arg: Plain) -> Plain:
    if step is Step.MODULE and arg.split(".")[:2] == ["torch", "_dynamo"]:
        needed = set(_attributes_of(code, name))
        offered = vars(FRAME_SHIMS[arg]) if arg in FRAME_SHIMS else {}
        if missing := sorted(needed - set(offered)):
            raise NotPortable(f"the caller frame calls {arg}.{missing[0]}")
        return [frame.SHIM, arg]
    return [int(step), arg]


def _attributes_of(code: types.CodeType, name: str) -> Iterator[str]:
    """What is read from a global right after it is loaded; "?" if it is used in another way."""
    instructions = list(_instructions(code))
    for this, following in itertools.pairwise(instructions):
        if this.opname in _GLOBAL_INSTRUCTIONS and this.argval == name:
            is_attribute = following.opname in ("LOAD_ATTR", "LOAD_METHOD")
            yield following.argval if is_attribute else "?"


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)


def _without_live_constants(
    code: types.CodeType, path: tuple[int, ...]
) -> tuple[types.CodeType, list[Plain]]:
    kept: list[object] = []
    taken: list[Plain] = []
    for position, constant in enumerate(code.co_consts):
        here = (*path, position)
        if isinstance(constant, types.CodeType):
            inner, inner_taken = _without_live_constants(constant, here)
            kept.append(inner)
            taken += inner_taken
        elif _is_plain(constant):
            kept.append(constant)
        else:
            kept.append(None)
            taken.append([list(here), _encode_constant(constant)])
    stripped = code.replace(co_consts=tuple(kept), co_filename="<npugx_cache frame>")
    return stripped, taken


def _is_plain(constant: Any) -> bool:
    try:
        marshal.dumps(constant)
    except ValueError:
        return False
    return True


def _encode_constant(constant: object) -> Plain:
    if isinstance(constant, types.MethodType) and isinstance(constant.__self__, type):
        return ["bound", identity(constant.__self__), constant.__func__.__name__]
    return encode(constant)


def _renamed(code: types.CodeType, names: dict[str, str]) -> types.CodeType:
    constants = tuple(
        _renamed(c, names) if isinstance(c, types.CodeType) else c for c in code.co_consts
    )
    return code.replace(
        co_names=tuple(names.get(name, name) for name in code.co_names), co_consts=constants
    )
