"""Program: an optimised aten graph as data. Does not import torch.

Values are numbered: first the inputs, then the constants, then the results of the calls in order.
Arguments are portable encodings (`npugx_cache.portable`) in which ["value", n] stands for a value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from npugx_cache.errors import CorruptEntry
from npugx_cache.portable.devices import renamed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npugx_cache.portable import Plain
    from npugx_cache.portable.devices import Rename

VALUE = "value"
COLLECTIVES = "_c10d_functional"
"""The namespace of operators that take a process group by name."""

STREAMS = "streams"
"""The namespace of operators on streams and events, which are named by labels (`streams`)."""

STREAM_OPERATORS = frozenset(
    {
        "fork",
        "record_event",
        "wait_event",
        "wait_stream",
        "record_stream",
        "synchronize_event",
        "synchronize_stream",
        "synchronize_device",
    }
)

SCOPES = {"limit_cores": "restore_cores", "set_determinism": "restore_determinism"}
"""Operators of the namespace `npugx_cache`: each that begins a scope, and the one that ends it."""

PYTHON_FUNCTIONS = frozenset(
    {
        *(
            f"operator.{name}"
            for name in ["getitem", "add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "neg"]
        ),
        *(
            f"operator.{name}"
            for name in [
                "eq",
                "ne",
                "lt",
                "le",
                "gt",
                "ge",
                "and_",
                "or_",
                "not_",
                "xor",
                "lshift",
                "rshift",
            ]
        ),
        *(f"math.{name}" for name in ["floor", "ceil", "trunc", "sqrt"]),
        *(
            f"torch.{name}"
            for name in ["sym_max", "sym_min", "sym_float", "sym_int", "sym_not", "sym_ite"]
        ),
        "torch.sym_sum",
        "builtins.round",
        "builtins.max",
        "builtins.min",
    }
)
"""Functions that a program may call besides operators: arithmetic on sizes, and unpacking."""


class Operator(NamedTuple):
    """A registered operator, or, if `namespace` is "", one of PYTHON_FUNCTIONS."""

    namespace: str
    name: str
    overload: str


class Call(NamedTuple):
    name: str
    operator: int
    args: Plain
    kwargs: Plain


class Constant(NamedTuple):
    """A tensor that belongs to the graph. Its bytes are stored separately under `name`.

    The stored bytes are those of a contiguous copy; `stride` holds the original strides.
    """

    name: str
    dtype: str
    device: str
    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A graph as data.

    operators: the operators that `calls` refer to by index.
    disable_autocast: the graph was traced under autocast. The casts are calls of the graph, so
    autocast must be off while the program runs, or it would cast once more.
    """

    inputs: tuple[str, ...]
    constants: tuple[Constant, ...]
    operators: tuple[Operator, ...]
    calls: tuple[Call, ...]
    outputs: Plain
    disable_autocast: bool

    def name_of(self, value: int) -> str:
        if value < len(self.inputs):
            return self.inputs[value]
        value -= len(self.inputs)
        if value < len(self.constants):
            return self.constants[value].name
        return self.calls[value - len(self.constants)].name

    def placed(self, rename: Rename) -> Program:
        """The same program with its devices renamed."""
        return replace(
            self,
            constants=tuple(c._replace(device=rename(c.device)) for c in self.constants),
            calls=tuple(
                call._replace(
                    args=[renamed(arg, rename) for arg in call.args],
                    kwargs=[[name, renamed(arg, rename)] for name, arg in call.kwargs],
                )
                for call in self.calls
            ),
            outputs=renamed(self.outputs, rename),
        )

    def to_plain(self) -> dict[str, Plain]:
        return {
            "inputs": list(self.inputs),
            "constants": [[*c[:3], list(c.size), list(c.stride)] for c in self.constants],
            "operators": [list(operator) for operator in self.operators],
            "calls": [list(call) for call in self.calls],
            "outputs": self.outputs,
            "disable_autocast": self.disable_autocast,
        }

    @classmethod
    def from_plain(cls, data: Any) -> Program:
        """The program that `to_plain` wrote. Raises `CorruptEntry` if `data` is not a program."""
        try:
            program = cls(
                inputs=tuple(map(_identifier, data["inputs"])),
                constants=tuple(
                    Constant(_identifier(n), str(t), str(d), tuple(size), tuple(stride))
                    for n, t, d, size, stride in data["constants"]
                ),
                operators=tuple(Operator(*map(str, row)) for row in data["operators"]),
                calls=tuple(Call(_identifier(n), int(o), a, k) for n, o, a, k in data["calls"]),
                outputs=data["outputs"],
                disable_autocast=bool(data["disable_autocast"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptEntry(f"program: {error!r}") from error
        program.validate()
        return program

    def validate(self) -> None:
        """Raise `CorruptEntry` for unknown functions, and for values used before they exist."""
        for operator in self.operators:
            if not operator.namespace and operator.name not in PYTHON_FUNCTIONS:
                raise CorruptEntry(f"program: {operator.name} is not an allowed function")
        known = len(self.inputs) + len(self.constants)
        for call in self.calls:
            self._check_values([call.args, call.kwargs], known)
            if not 0 <= call.operator < len(self.operators):
                raise CorruptEntry(f"program: call {call.name} of operator {call.operator}")
            known += 1
        self._check_values(self.outputs, known)

    def _check_values(self, data: Plain, known: int) -> None:
        for value in values_in(data):
            if not isinstance(value, int) or not 0 <= value < known:
                raise CorruptEntry(f"program: value {value!r} is used before it is computed")


def values_in(data: Plain) -> Iterator[int]:
    """The values that encoded arguments refer to."""
    if isinstance(data, list):
        if len(data) == 2 and data[0] == VALUE:
            yield data[1]
        else:
            for item in data:
                yield from values_in(item)


def _identifier(name: Any) -> str:
    # Names become part of Python text that is executed: any other text could run code.
    if not isinstance(name, str) or not name.isidentifier():
        raise CorruptEntry(f"program: {name!r} is not an identifier")
    return name
