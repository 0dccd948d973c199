"""Describes a captured graph as data, so that another process can capture it before its first call.

A capture needs the sizes of all tensors of a call, and the addresses of the tensors that the graph
uses in place. It does not need the contents of the tensors. Parameters and buffers of the object
that the function is bound to exist before the first call, and are found by name. Tensors that a
caller passes don't exist yet: a graph that uses one in place can't be captured ahead.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgpack
import torch

from npugx_cache.backend.capture.layout import Role
from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npugx_cache.backend.capture.keys import Key, Keys
    from npugx_cache.backend.capture.layout import Layout

Spec = tuple[Any, ...]
"""One input of a graph, in one of these forms:

("number", n): a number of the graph's key.
("length", n): a number that may differ between replays.
("named", name): a parameter or buffer.
(kind, dtype, size, stride): another tensor. Its kind is "tensor" (on the graph's device), "host"
(on the CPU) or "unused".
("value", dtype, (), (), n): a tensor on the CPU with the number n.
"""

_NUMBERS = (bool, int, float)
LABELS = ("stream", "event")
_KIND_OF = {
    Role.HOST: "host",
    Role.LENGTHS: "host",
    Role.VALUE: "value",
    Role.UNUSED: "unused",
}


class Planned(NamedTuple):
    """What another process needs in order to capture the same graph.

    inference: whether the capture ran in inference mode.
    obstacle: why the graph can't be captured without the tensors of a call, or "".
    labels: the labels of streams and events (`streams.Label`) as specs: ("stream", label, first,
    state) or ("event", label, first, ()).
    """

    inputs: tuple[Spec, ...]
    inference: bool
    obstacle: str
    labels: tuple[Spec, ...] = ()

    @property
    def identity(self) -> str:
        """A digest of the plan, the same in any process. The values of lengths don't count."""
        inputs = [("length",) if spec[0] == "length" else spec for spec in self.inputs]
        packed = msgpack.packb([inputs, self.inference, self.obstacle, *self.labels])
        return hashlib.sha256(packed).hexdigest()[:32]

    @property
    def shape(self) -> str:
        """The sizes and numbers in a short form for people."""
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
            what = f"{_shown(spec)}, input {position}, which belongs to the caller"
            obstacle = obstacle or f"it {done} {what}"
        if position in adrift:
            what = f"{_shown(spec)}, input {position}, has another address at each call"
            obstacle = obstacle or what
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
    """Inputs to capture with, or the reason why there are none.

    Parameters and buffers are the live ones; all other tensors are new and filled with zeros.
    """
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
    # Zeros, because they are also valid if the tensor is used as an index.
    tensor = torch.zeros(count, dtype=dtype, device=where).as_strided(size, stride)
    return tensor.fill_(number[0]) if number else tensor


def of_specs(specs: Iterable[Spec], *, inference: bool, obstacle: str) -> Planned:
    """The plan from its specs in one list: records hold inputs and labels together."""
    inputs: list[Spec] = []
    labels: list[Spec] = []
    for spec in specs:
        (labels if spec[0] in LABELS else inputs).append(spec)
    return Planned(tuple(inputs), inference, obstacle, tuple(labels))


def plain_spec(spec: Spec) -> list[Any]:
    return [list(part) if isinstance(part, tuple) else part for part in spec]


def checked(spec: Any) -> Spec:
    """Decode what `plain_spec` has written; raises ValueError for anything else."""
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
