"""Library: how to call a compiled library instead of a program, as data. Does not import torch.

A library takes and returns only tensors, and its results never share memory. A program may also
return views of its inputs, several views of one result, and numbers. A second, small program, the
*finish*, makes these from the library's results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npugx_cache.backend.program import Operator
from npugx_cache.errors import CorruptEntry

if TYPE_CHECKING:
    from npugx_cache.portable import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The arguments of the library, and the finish. Positions are those of the program's inputs.

    engine: the backend that compiled it, and that loads it.
    tensors, sizes, constants: the library's arguments, in this order: the inputs that are tensors;
    the inputs that are numbers, each passed as a tensor of that many elements; the program's
    constants, by index.
    written: the inputs that the library writes to. They must not overlap any other input.
    finish_code: the compiled finish. It takes the inputs at `finish_inputs` and then the library's
    results, and returns the program's outputs. `finish_operators`: its operators by name.
    """

    engine: str
    tensors: tuple[int, ...]
    sizes: tuple[int, ...]
    constants: tuple[int, ...]
    written: tuple[int, ...]
    finish_inputs: tuple[int, ...]
    finish_code: bytes
    finish_operators: tuple[tuple[str, Operator], ...]

    def to_plain(self) -> dict[str, Plain]:
        return {
            "engine": self.engine,
            "tensors": list(self.tensors),
            "sizes": list(self.sizes),
            "constants": list(self.constants),
            "written": list(self.written),
            "finish_inputs": list(self.finish_inputs),
            "finish_code": self.finish_code,
            "finish_operators": [[name, *operator] for name, operator in self.finish_operators],
        }

    @classmethod
    def from_plain(cls, data: Any) -> Library:
        """Decode what `to_plain` has written; raises `CorruptEntry` for anything else."""
        try:
            return cls(
                engine=str(data["engine"]),
                tensors=tuple(map(int, data["tensors"])),
                sizes=tuple(map(int, data["sizes"])),
                constants=tuple(map(int, data["constants"])),
                written=tuple(map(int, data["written"])),
                finish_inputs=tuple(map(int, data["finish_inputs"])),
                finish_code=bytes(data["finish_code"]),
                finish_operators=tuple(
                    (str(name), Operator(*map(str, operator)))
                    for name, *operator in data["finish_operators"]
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptEntry(f"library: {error!r}") from error
