"""Converts the parts of an entry to named blobs and back. Decodes data only; executes nothing.

| blob       | content                                                              | read by |
|------------|----------------------------------------------------------------------|---------|
| conditions | when the graph may run, msgpack                                      | restore |
| bindings   | caller frame, compiled program text, names of operators, msgpack     | restore |
| constants  | tensors that belong to the graph, safetensors; only if there are any | restore |
| sizes      | what Dynamo knew of sizes before and after the trace, msgpack        | a miss  |
| program    | the graph as data, msgpack                                           | tools   |
| library    | the graph compiled: a shared library (inductor), or what GE is given | restore |
| set_up     | what to call before a graph fits, and on what; such an entry only    | restore |
| readable   | the text that `npugx-cache readable` shows                           | people  |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache.backend.capture.layout import Layout
from npugx_cache.backend.program import Constant, Operator, Program
from npugx_cache.conditions import Conditions
from npugx_cache.entry.frame import Frame, as_bytes
from npugx_cache.errors import CorruptEntry
from npugx_cache.records import dataclass, replace
from npugx_cache.store.format.plain import pack, unpack
from npugx_cache.version import FORMAT, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npugx_cache.backend.inductor.library import Library
    from npugx_cache.backend.inner_tensors import Parts
    from npugx_cache.portable.devices import Rename

CONDITIONS = "conditions"
BINDINGS = "bindings"
CONSTANTS = "constants"
SIZES = "sizes"
PROGRAM = "program"
LIBRARY = "library"
SET_UP = "set_up"
READABLE = "readable"

_MAX_BYTES = 1 << 30
_MAX_ITEMS = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Bindings:
    """The parts of an entry that run.

    Without tensor operations, `program_code` is empty and `layout` is None. `library` tells how to
    call the entry's library in the place of the program, if the entry has one. `parts` has the
    `inner_tensors.Parts` of each value that the frame hands to the graph; it is empty if the
    program takes all of them as they are. A piece has no frame: who traced it calls it.
    """

    frame: Frame | None
    program_code: bytes
    operators: tuple[tuple[str, Operator], ...]
    constants: tuple[Constant, ...]
    disable_autocast: bool
    layout: Layout | None
    library: Library | None = None
    parts: tuple[Parts, ...] = ()

    def rename_devices(self, rename: Rename) -> Bindings:
        """The bindings in which each device is renamed, except in the program's code."""
        layout = self.layout and replace(self.layout, device=rename(self.layout.device))
        constants = tuple(c._replace(device=rename(c.device)) for c in self.constants)
        frame = self.frame and self.frame.rename_devices(rename)
        return replace(self, frame=frame, layout=layout, constants=constants)

    def pack(self) -> bytes:
        return pack(
            {
                "frame": self.frame.to_plain() if self.frame else None,
                "program_code": self.program_code,
                "operators": [[name, *operator] for name, operator in self.operators],
                "constants": [[*c[:3], list(c.size), list(c.stride)] for c in self.constants],
                "disable_autocast": self.disable_autocast,
                "layout": self.layout.to_plain() if self.layout else None,
                "library": self.library.to_plain() if self.library else None,
                "parts": [list(each) for each in self.parts],
            }
        )

    @classmethod
    def unpack(cls, data: bytes) -> Bindings:
        """The bindings in stored bytes; raises `CorruptEntry`."""
        plain = _unpack(data)
        try:
            return cls(
                frame=Frame.from_plain(plain["frame"]) if plain["frame"] else None,
                program_code=as_bytes(plain["program_code"]),
                operators=tuple((str(n), Operator(*map(str, op))) for n, *op in plain["operators"]),
                constants=tuple(
                    Constant(str(n), str(t), str(d), tuple(size), tuple(stride))
                    for n, t, d, size, stride in plain["constants"]
                ),
                disable_autocast=bool(plain["disable_autocast"]),
                layout=Layout.from_plain(plain["layout"]) if plain["layout"] else None,
                library=_library(plain["library"]) if plain["library"] else None,
                parts=tuple(tuple(map(_path, each)) for each in plain["parts"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptEntry(f"bindings: {error!r}") from error


def _path(data: Any) -> str:
    if not isinstance(data, str) or not all(map(str.isidentifier, data.split("."))):
        raise ValueError(f"{data!r} is no path to a tensor")
    return data


def _library(data: Any) -> Library:
    from npugx_cache.backend.inductor.library import Library

    return Library.from_plain(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """All parts of one entry.

    `constants` are the bytes of a safetensors file, and `library` those of a shared library (ELF)
    or of a `backend.ge.engine_graph`.
    `sizes` are the rows of `trace.observe.size_memory` before and after the trace.
    """

    conditions: Conditions
    bindings: Bindings
    constants: bytes | None
    sizes: tuple[list[Any], list[Any]]
    program: Program | None
    library: bytes | None
    readable: str

    def to_blobs(self) -> dict[str, bytes]:
        blobs = {
            CONDITIONS: pack_conditions(self.conditions),
            BINDINGS: self.bindings.pack(),
            READABLE: self.readable.encode(),
        }
        if any(self.sizes):
            blobs[SIZES] = pack(self.sizes)
        if self.program is not None:
            blobs[PROGRAM] = pack(self.program.to_plain())
        if self.library is not None:
            blobs[LIBRARY] = self.library
        if self.constants is not None:
            blobs[CONSTANTS] = self.constants
        return blobs


def pack_conditions(conditions: Conditions) -> bytes:
    return pack(conditions.to_plain())


def set_up_blobs(
    name: str, node: int, conditions: Conditions, sizes: tuple[list[Any], list[Any]]
) -> dict[str, bytes]:
    """The entry of a set-up. `node` is the place of the model in the tree of the conditions."""
    blobs = {CONDITIONS: pack_conditions(conditions), SET_UP: pack([name, node])}
    return {**blobs, SIZES: pack(sizes)} if any(sizes) else blobs


def set_up_of(blobs: Mapping[str, bytes]) -> tuple[str, int]:
    """The name of a set-up, and the place of the model; raises `CorruptEntry`."""
    match _unpack(blobs[SET_UP]):
        case [str() as name, int() as node]:
            return name, node
    raise CorruptEntry("set_up: not a name and a place")


def other_release(factors: Iterable[Iterable[str]]) -> str | None:
    """Which release made an entry, in words, if its parts may mean something else to this one.

    The format is part of the key, so only who names an entry meets one of another format.
    """
    rows = {name: value for name, value, *_ in factors}
    form = rows.get("format", FORMAT)
    if form == FORMAT:
        return None
    release = rows.get("npugx_cache", "another release")
    return f"made by npugx_cache {release} in format {form}, and this is {VERSION} with {FORMAT}"


def conditions_of(blobs: Mapping[str, bytes]) -> Conditions:
    """The conditions under which an entry may run; raises `CorruptEntry`."""
    return Conditions.from_plain(_unpack(blobs[CONDITIONS]))


def sizes_of(blobs: Mapping[str, bytes]) -> tuple[list[Any], list[Any]]:
    """The rows of what Dynamo knew of sizes before and after a trace; raises `CorruptEntry`."""
    known = _unpack(blobs[SIZES])
    try:
        before, after = (
            [[str(n), s, size, stride] for n, s, size, stride in rows] for rows in known
        )
    except (TypeError, ValueError) as error:
        raise CorruptEntry(f"sizes: {error!r}") from error
    return before, after


def program_of(blobs: Mapping[str, bytes]) -> Program:
    """The graph of an entry as data; raises `CorruptEntry`."""
    return Program.from_plain(_unpack(blobs[PROGRAM]))


def _unpack(data: bytes) -> Any:
    try:
        return unpack(data, max_bytes=_MAX_BYTES, max_items=_MAX_ITEMS)
    except ValueError as error:
        raise CorruptEntry(str(error)) from error
