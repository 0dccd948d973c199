"""Layout: what a capture needs to know about a program's inputs, as data. Does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache.errors import CorruptEntry
from npugx_cache.records import IntEnum, dataclass, replace

if TYPE_CHECKING:
    from npugx_cache.portable import Plain


class Role(IntEnum):
    """How a captured graph gets an input.

    NUMBER: baked into the graph, so another value is another graph.
    TENSOR: copied into a buffer of the graph, or read at its address under `clone_input=False`.
    PARAMETER: read at its address, which usually does not change.
    PLACED: read at its address, because the program could tell a copy from the original.
    WRITTEN: the graph writes to the tensor at its address.
    UNUSED: the program does not use it.
    VALUE: a number in a tensor on the CPU, treated as NUMBER. This is how Dynamo passes a float
    that changes between calls.
    HOST: a tensor on the CPU that the program only copies to its device. Before each replay it is
    copied into a buffer of the graph.
    LENGTH: a number that only updatable operators take. Each replay gives these operators the new
    number.
    LENGTHS: a tensor on the CPU, treated as LENGTH.
    """

    NUMBER = 0
    TENSOR = 1
    PARAMETER = 2
    PLACED = 3
    WRITTEN = 4
    UNUSED = 5
    VALUE = 6
    HOST = 7
    LENGTH = 8
    LENGTHS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One role per input of a program.

    device: where the program runs, such as "npu:0"; "" for a program without tensors, and for one
    that is refused because it runs in several places.
    shaped: positions of tensors whose sizes or strides may differ between calls.
    refusal: why the program can't be captured, or "".
    """

    device: str
    roles: tuple[Role, ...]
    shaped: tuple[int, ...] = ()
    refusal: str = ""

    def unguarded(self) -> Layout:
        """The layout for a program without guards: any tensor may have other sizes at each call."""
        kinds = (Role.TENSOR, Role.PARAMETER, Role.PLACED, Role.WRITTEN, Role.HOST, Role.LENGTHS)
        tensors = self.positions(*kinds)
        return replace(self, shaped=tensors)

    def positions(self, *roles: Role) -> tuple[int, ...]:
        return tuple(i for i, role in enumerate(self.roles) if role in roles)

    def to_plain(self) -> dict[str, Plain]:
        return {
            "device": self.device,
            "roles": [int(role) for role in self.roles],
            "shaped": list(self.shaped),
            "refusal": self.refusal,
        }

    @classmethod
    def from_plain(cls, data: Any) -> Layout:
        """Decode what `to_plain` has written; raises `CorruptEntry` for anything else."""
        try:
            layout = cls(
                device=str(data["device"]),
                roles=tuple(map(Role, data["roles"])),
                shaped=tuple(map(int, data["shaped"])),
                refusal=str(data["refusal"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptEntry(f"capture layout: {error!r}") from error
        if not all(0 <= position < len(layout.roles) for position in layout.shaped):
            raise CorruptEntry("capture layout: a position that is not an input")
        return layout
