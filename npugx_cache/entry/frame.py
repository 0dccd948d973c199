"""Binds stored caller frames to functions. The only module that loads code objects from bytes.

A caller frame is the bytecode that Dynamo wrote around the graph: it reads tensors out of the
arguments, calls the graph, rebuilds the outputs and replays side effects. Its bytes are tied to the
exact Python version, which is a factor of every fingerprint.

`marshal` is not safe on bytes of unknown origin. So `load` is called only on blobs of a manifest
that passed the store's trust check, after the digests of the blobs were verified (P6).
"""

from __future__ import annotations

import itertools
import marshal
import types
import weakref
from typing import TYPE_CHECKING, Any

from npugx_cache.conditions import Step
from npugx_cache.conditions.evaluate import Scope, read
from npugx_cache.errors import CorruptEntry
from npugx_cache.portable import NotPortable, Plain, decode
from npugx_cache.portable.devices import rename_devices
from npugx_cache.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npugx_cache.portable.devices import Rename

GRAPH = "graph"
SHIM = "shim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A caller frame as data.

    `names` has the global names that Dynamo made up, each with what the name means: GRAPH,
    [SHIM, module], or the [step, argument] of a root of a guard tree. These names are placeholders;
    `bind` replaces them by unused names. `globals` are the other global names that the code uses.
    `constants` are the live objects among the code's constants, as [path, encoding].
    """

    code: bytes
    names: Mapping[str, Plain]
    globals: tuple[str, ...]
    constants: tuple[Plain, ...]

    def rename_devices(self, rename: Rename) -> Frame:
        """The frame in which each device among the constants is renamed."""
        return replace(
            self, constants=tuple(rename_devices(each, rename) for each in self.constants)
        )

    def to_plain(self) -> dict[str, Plain]:
        return {
            "code": self.code,
            "names": dict(self.names),
            "globals": list(self.globals),
            "constants": list(self.constants),
        }

    @classmethod
    def from_plain(cls, data: Any) -> Frame:
        try:
            return cls(
                code=as_bytes(data["code"]),
                names=dict(data["names"]),
                globals=tuple(data["globals"]),
                constants=tuple(data["constants"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptEntry(f"caller frame: {error!r}") from error


def as_bytes(value: object) -> bytes:
    """`value` if it is bytes, or else TypeError: `bytes(n)` would take a number for a size."""
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} in the place of bytes")
    return value


def dump(code: types.CodeType) -> bytes:
    """The bytes of a code object; raises `NotPortable` if a constant is a live object."""
    try:
        return marshal.dumps(code)
    except ValueError as error:
        raise NotPortable(f"code of {code.co_name} holds a live object: {error}") from None


def load(data: bytes) -> types.CodeType:
    """The code object in bytes that the store has authenticated; raises `CorruptEntry`."""
    try:
        code = marshal.loads(data)  # noqa: S302 - authenticated bytes only, see above
    except (ValueError, EOFError, TypeError, MemoryError) as error:
        raise CorruptEntry(f"code bytes: {error!r}") from error
    if not isinstance(code, types.CodeType):
        raise CorruptEntry(f"code bytes hold a {type(code).__name__}")
    return code


_serial = itertools.count()


def bind(
    frame: Frame, function: types.FunctionType, graph: Callable[..., Any]
) -> types.FunctionType:
    """A function that runs the frame in the place of `function`, and calls `graph`.

    The frame runs with the function's own globals, so it sees later changes of them. Objects that
    `frame.names` lists are installed there under unused names, as Dynamo does it, and removed
    together with the returned function. Raises `NotPortable` if something that the frame refers to
    does not exist in this process.
    """
    code = load(frame.code)
    scope = function.__globals__
    builtins = read((-1, Step.BUILTINS, None), (), Scope({}, scope))
    for name in frame.globals:  # otherwise the call would end with a NameError
        if name not in scope and name not in builtins:
            raise NotPortable(f"the caller frame needs a global {name}, which does not exist")
    installed = {name: f"__npugx_{next(_serial)}" for name in frame.names}
    for name, data in frame.names.items():
        scope[installed[name]] = graph if data == GRAPH else _named_value(data, scope)
    code = _with_constants(_with_names(code, installed), frame.constants)
    bound = types.FunctionType(
        code, scope, function.__name__, function.__defaults__, function.__closure__
    )
    bound.__kwdefaults__ = function.__kwdefaults__
    weakref.finalize(bound, _uninstall, scope, tuple(installed.values()))
    return bound


def _named_value(data: Plain, scope: dict[str, Any]) -> Any:
    kind, arg = data
    if kind == SHIM:
        from npugx_cache.backend.frame_shims import FRAME_SHIMS

        return FRAME_SHIMS[arg]
    try:
        return read((-1, kind, arg), (), Scope({}, scope))
    except (LookupError, AttributeError) as error:
        raise NotPortable(f"the caller frame needs {arg!r}: {error!r}") from None


def _uninstall(scope: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        scope.pop(name, None)


def _with_names(code: types.CodeType, installed: Mapping[str, str]) -> types.CodeType:
    constants = tuple(
        _with_names(c, installed) if isinstance(c, types.CodeType) else c for c in code.co_consts
    )
    names = tuple(installed.get(name, name) for name in code.co_names)
    return code.replace(co_names=names, co_consts=constants)


def _with_constants(code: types.CodeType, constants: tuple[Plain, ...]) -> types.CodeType:
    for path, encoded in constants:
        code = _with_constant(code, list(path), decode_constant(encoded))
    return code


def _with_constant(code: types.CodeType, path: list[int], value: Any) -> types.CodeType:
    position, *rest = path
    constants = list(code.co_consts)
    constants[position] = _with_constant(constants[position], rest, value) if rest else value
    return code.replace(co_consts=tuple(constants))


def decode_constant(encoded: Plain) -> Any:
    """The live object of an encoded constant; ["bound", class, name] is a class method."""
    if isinstance(encoded, list) and encoded[0] == "bound":
        return getattr(decode(["id", encoded[1]]), encoded[2])
    return decode(encoded)
