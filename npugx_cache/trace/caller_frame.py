"""Turns the bytecode that Dynamo wrote into a `Frame` that any process can bind.

Names and live objects in the bytecode that only this process has are replaced by portable ones.
"""

from __future__ import annotations

import dis
import marshal
import types
from typing import TYPE_CHECKING, Any

from npugx_cache import location
from npugx_cache.backend.frame_shims import DRAWS, FRAME_SHIMS
from npugx_cache.conditions import Step
from npugx_cache.entry import frame
from npugx_cache.portable import NotPortable, Plain, encode, identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npugx_cache.trace.conditions.builder import Roots

_READING = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_GLOBAL_INSTRUCTIONS = _READING | {"STORE_GLOBAL", "DELETE_GLOBAL"}


def portable_frame(
    code: types.CodeType, graph_name: str | None, roots: Roots, imports: dict[str, str]
) -> frame.Frame:
    """The portable frame; raises `NotPortable` if it needs something that only this process has.

    `graph_name` is the global name of the graph, or None without a graph. `imports` are the names
    that Dynamo made up for modules, each with its module.
    """
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
        if name.startswith(DRAWS):
            place = location.Place(code.co_filename, code.co_firstlineno, code.co_name, "")
            change = "draw it outside the cached function and pass it in"
            raise NotPortable(location.reason("a number of Python's random", place, change))
        step, arg = roots.of(name, imports)
        if step is Step.GLOBAL:
            plain_globals.append(name)
        else:
            names[name] = _encode_name(code, name, step, arg)
    stripped, constants = _without_live_constants(code, ())
    # Dynamo's names contain counters and addresses, but equal frames must have equal bytes.
    placeholders = {name: f"__npugx_{i}" for i, name in enumerate(names)}
    return frame.Frame(
        code=marshal.dumps(_rename_in_code(stripped, placeholders)),
        names={placeholders[name]: data for name, data in names.items()},
        globals=tuple(plain_globals),
        constants=tuple(constants),
    )


def refuse_positions(code: types.CodeType) -> None:
    """Raise `NotPortable` for a frame that reads keys of a dict by position.

    Call this if `move_to_end` has changed an OrderedDict. Dynamo counts the positions as in a plain
    dict, which ignores that change.
    """
    if "dict_keys_getitem" in code.co_names:
        what = "an OrderedDict that move_to_end changed is read by position"
        place = location.Place(code.co_filename, code.co_firstlineno, code.co_name, "")
        raise NotPortable(location.reason(what, place, "make a new one in the order it has"))


def item_read_too_late(code: types.CodeType) -> str | None:
    """Why a frame takes a wrong item from an iterator that the function was given, or None.

    Dynamo's frame moves each iterator forward, and writes to objects, one object after the other.
    What it writes afterwards it reads from the iterator as if the iterator had not moved.
    """
    names = [each.argval for each in dis.get_instructions(code)]
    moves = names.index("iter_next") if "iter_next" in names else len(names)
    if "tuple_iterator_getitem" not in names[moves:]:
        return None
    what = "an item of an iterator that was there before the call is kept by an object"
    place = location.Place(code.co_filename, code.co_firstlineno, code.co_name, "")
    return location.reason(what, place, "take a list or a tuple as the argument")


_LEAVING = {
    "get_external_object_by_index": "a stream or an event that was made inside",
    "_create_nested_fn": "a function that was made inside",
    "to_subclass": "a tensor of a class of the user's that was made inside",
}
"""What the frame would make of a result, by the function of Dynamo's that it calls for that."""


def _encode_name(code: types.CodeType, name: str, step: Step, arg: Plain) -> Plain:
    if step is Step.MODULE and arg.split(".")[:2] == ["torch", "_dynamo"]:
        needed = set(_attributes_of(code, name))
        offered = vars(FRAME_SHIMS[arg]) if arg in FRAME_SHIMS else {}
        if missing := sorted(needed - set(offered)):
            leaving = _LEAVING.get(missing[0], f"what {arg}.{missing[0]} makes")
            change = "return tensors, and make it of them outside the cached function"
            raise NotPortable(location.reason(f"{leaving} leaves the function", None, change))
        return [frame.SHIM, arg]
    return [int(step), arg]


def _attributes_of(code: types.CodeType, name: str) -> Iterator[str]:
    """The attributes that are read from a global, or from a local variable that keeps the global.

    "?" stands for any other use of the global.
    """
    for block in _blocks(code):
        instructions = list(dis.get_instructions(block))
        for position, this in enumerate(instructions):
            if this.opname in _GLOBAL_INSTRUCTIONS and this.argval == name:
                is_read = this.opname in _READING
                yield from _uses(instructions, position + 1) if is_read else "?"


def _uses(instructions: list[dis.Instruction], position: int) -> Iterator[str]:
    """The attributes that are read from the value on top of the stack at a position, or "?"."""
    this = instructions[position]
    if this.opname in ("LOAD_ATTR", "LOAD_METHOD"):
        yield this.argval
        return
    # Dynamo keeps a value that it needs again: COPY, STORE_FAST, and later LOAD_FAST.
    kept = instructions[position + 1]
    if (this.opname, this.arg, kept.opname) != ("COPY", 1, "STORE_FAST"):
        yield "?"
        return
    yield from _uses(instructions, position + 2)
    for other, instruction in enumerate(instructions):
        if instruction is kept or kept.argval not in _locals_of(instruction):
            continue
        is_read = instruction.opname in ("LOAD_FAST", "LOAD_FAST_CHECK")
        yield from _uses(instructions, other + 1) if is_read else "?"


def _locals_of(instruction: dis.Instruction) -> tuple[str, ...]:
    """The local names of an instruction. In Python 3.13 an instruction may have two."""
    if "_FAST" not in instruction.opname:
        return ()
    named = instruction.argval
    return named if isinstance(named, tuple) else (named,)


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    for block in _blocks(code):
        yield from dis.get_instructions(block)


def _blocks(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object, and all code objects inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _blocks(constant)


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
    """Whether marshal keeps the constant. It writes objects with a buffer (np.float64) as bytes."""
    if type(constant) in (tuple, frozenset):
        return all(map(_is_plain, constant))
    return type(constant) in _MARSHALLED


_MARSHALLED = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


def _encode_constant(constant: object) -> Plain:
    if isinstance(constant, types.MethodType) and isinstance(constant.__self__, type):
        return ["bound", identity(constant.__self__), constant.__func__.__name__]
    return encode(constant)


def _rename_in_code(code: types.CodeType, names: dict[str, str]) -> types.CodeType:
    constants = tuple(
        _rename_in_code(c, names) if isinstance(c, types.CodeType) else c for c in code.co_consts
    )
    return code.replace(
        co_names=tuple(names.get(name, name) for name in code.co_names), co_consts=constants
    )
