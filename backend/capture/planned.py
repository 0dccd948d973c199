"""What a captured graph was captured for, as data, so that another process can capture the same.

A capture needs the sizes of all tensors of a call, and the addresses of those that the graph uses
in place; it does not need their contents. Parameters and buffers of the object that the function is
bound to have addresses before the first call, and are found by name. Tensors of a caller are not.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import torch

from npugx_cache.backend.capture.layout import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npugx_cache.backend.capture.keys import Key, Keys
    from npugx_cache.backend.capture.layout import Layout

Spec = tuple[Any, ...]
"""One input: ("number", n), ("named", name), ("length", n) for a number that may be another one at
each replay, or (kind, dtype, size, stride[, n]), where kind is "tensor" on the graph's device,
"host" or "value" on the CPU, and "unused"."""

_NUMBERS = (bool, int, float)
LABELS = ("stream", "event")
_KIND_OF = {
    Role.HOST: "host",
    Role.LENGTHS: "host",
    Role.VALUE: "value",
    Role.UNUSED: "unused",
}


class Planned(NamedTuple):
    """`obstacle`: why it can't be captured without a caller's tensors, or "".

    labels: what the labels of streams and events stand for, as specs like those of the inputs:
    ("stream", label, first, state) or ("event", label, first, ()) (`streams.Label`).
    """

    inputs: tuple[Spec, ...]
    inference: bool
    obstacle: str
    labels: tuple[Spec, ...] = ()

    @property
    def identity(self) -> str:
        """The same for equal ones, in any process."""
        inputs = [("length",) if spec[0] == "length" else spec for spec in self.inputs]
        packed = msgpack.packb([inputs, self.inference, self.obstacle, *self.labels])
        return hashlib.sha256(packed).hexdigest()[:32]

    @property
    def shape(self) -> str:
        """The sizes and numbers in short, for people."""
        parts = (_shown(spec) for spec in self.inputs if spec[0] not in ("named", "unused"))
        return ", ".join(parts)[:400]


class Names:
    """The parameters and buffers of a module by name, and the names of those tensors."""

    def __init__(self, owner: object) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        if isinstance(owner, torch.nn.Module):
            self._tensors.update(owner.named_parameters(remove_duplicate=False))
            self._tensors.update(owner.named_buffers(remove_duplicate=False))
        self._names = {id(tensor): name for name, tensor in self._tensors.items()}

    def name_of(self, tensor: torch.Tensor) -> str | None:
        return self._names.get(id(tensor))

    def tensor(self, name: str) -> torch.Tensor | None:
        return self._tensors.get(name)


def describe(layout: Layout, keys: Keys, key: Key, inputs: Sequence[Any], names: Names) -> Planned:
    """The plan of a graph that has just been captured for these inputs."""
    in_place = {*(position for position, _ in key.places), *keys.kept}
    adrift = {*keys.buffered(key)} - {*keys.copied}
    specs: list[Spec] = []
    obstacle = ""
    for position, (role, value) in enumerate(zip(layout.roles, inputs, strict=True)):
        name = names.name_of(value) if position in in_place else None
        spec = ("named", name) if name is not None else _spec(role, value)
        if position in in_place and name is None:
            done = "writes to" if role == Role.WRITTEN else "uses at its address"
            obstacle = obstacle or f"it {done} {_shown(spec)}, input {position}, a caller's own"
        if position in adrift:
            obstacle = obstacle or f"{_shown(spec)}, input {position}, is elsewhere at each call"
        if spec[0] in ("number", "length") and not _is_plain(spec[1]):
            obstacle = obstacle or f"input {position} is a {type(value).__name__}"
            spec = (spec[0], 0)
        specs.append(spec)
    return Planned(tuple(specs), torch.is_inference_mode_enabled(), obstacle)


def _spec(role: Role, value: Any) -> Spec:
    if not isinstance(value, torch.Tensor):
        return ("length" if role == Role.LENGTH else "number", value)
    kind = _KIND_OF.get(role, "tensor")
    dtype = str(value.dtype).removeprefix("torch.")
    spec = (kind, dtype, tuple(map(int, value.shape)), tuple(map(int, value.stride())))
    return (*spec, value.item()) if kind == "value" else spec


def _is_plain(value: object) -> bool:
    return type(value) in _NUMBERS and not (type(value) is int and abs(value) >= 1 << 63)


def _shown(spec: Spec) -> str:
    if spec[0] in ("number", "named"):
        return str(spec[1])
    if spec[0] == "length":
        return "any length"
    return f"{spec[1]}{list(spec[2])}" + (f"={spec[4]}" if spec[0] == "value" else "")


def inputs_of(planned: Planned, layout: Layout, names: Names) -> list[Any] | str:
    """Tensors and numbers to capture with, or why there are none. Contents are zeros."""
    if planned.obstacle:
        return planned.obstacle
    if len(planned.inputs) != len(layout.roles):
        return f"it has {len(planned.inputs)} inputs instead of {len(layout.roles)}"
    try:
        made = [_made(spec, layout.device, names) for spec in planned.inputs]
    except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        return f"an input can't be made: {error}"
    return made


def _made(spec: Spec, device: str, names: Names) -> Any:
    if spec[0] in ("number", "length"):
        return spec[1]
    if spec[0] == "named":
        tensor = names.tensor(spec[1])
        if tensor is None:
            raise KeyError(f"there is no parameter or buffer {spec[1]!r}")
        return tensor
    kind, name, size, stride, *number = spec
    dtype = getattr(torch, name)
    where = device if kind == "tensor" else "cpu"
    extent = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    count = 0 if 0 in size else extent
    # A tensor of zeros that is an index is a valid one.
    tensor = torch.zeros(count, dtype=dtype, device=where).as_strided(size, stride)
    return tensor.fill_(number[0]) if number else tensor


def of_specs(specs: Iterable[Spec], *, inference: bool, obstacle: str) -> Planned:
    """From inputs and labels in one, as they are recorded."""
    inputs: list[Spec] = []
    labels: list[Spec] = []
    for spec in specs:
        (labels if spec[0] in LABELS else inputs).append(spec)
    return Planned(tuple(inputs), inference, obstacle, tuple(labels))


def plain_spec(spec: Spec) -> list[Any]:
    return [list(part) if isinstance(part, tuple) else part for part in spec]


def checked(spec: Any) -> Spec:
    """An input as `plain_spec` has written it; raises ValueError for anything else."""
    match spec:
        case ["number", bool() | int() | float() as number]:
            return ("number", number)
        case ["length", int() as number]:
            return ("length", number)
        case ["named", str(name)]:
            return ("named", name)
        case ["tensor" | "host" | "unused" as kind, str(dtype), list(size), list(stride)]:
            return (kind, _dtype(dtype), _sizes(size), _sizes(stride))
        case ["value", str(dtype), [], [], bool() | int() | float() as number]:
            return ("value", _dtype(dtype), (), (), number)
        case ["stream" | "event" as kind, int(label), int(first), list(state)]:
            return (kind, label, first, _sizes(state))
    raise ValueError(f"not an input of a graph: {spec!r}")


def _dtype(name: str) -> str:
    if not hasattr(torch, name) or type(getattr(torch, name)) is not torch.dtype:
        raise ValueError(f"not a dtype: {name!r}")
    return name


def _sizes(values: list[Any]) -> tuple[int, ...]:
    if not all(type(value) is int and 0 <= value < 1 << 40 for value in values):
        raise ValueError(f"not sizes: {values!r}")
    return tuple(values)
