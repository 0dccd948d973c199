"""Program: an optimised aten graph as data. Does not import torch.

Values are numbered: first the inputs, then the constants, then the results of the calls in order.
Arguments are portable encodings (`npugx_cache.portable`) in which ["value", n] stands for a value,
and ["function", n] for a graph inside the graph, such as a branch of `torch.cond`.
"""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING, Any

from npugx_cache.errors import CorruptEntry
from npugx_cache.portable.devices import rename_devices
from npugx_cache.records import NamedTuple, dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npugx_cache.backend.notes import Notes
    from npugx_cache.portable import Plain
    from npugx_cache.portable.devices import Rename

VALUE = "value"
FUNCTION = "function"
MAIN = "forward"
"""The name of the function that is the graph itself."""

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

HIGHER_ORDER = "higher_order"
"""The namespace of operators that take graphs as arguments."""

CONTROL_FLOW = {"cond": 4, "map_impl": 3, "scan": 4, "while_loop": 4}
"""The operators of that namespace that a program may call, and how many arguments each takes."""

_GRAPHS = {"cond": {1, 2}, "map_impl": {0}, "scan": {0}, "while_loop": {0, 1}}
"""The places of the arguments of these operators that are graphs; no other argument is one."""

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
        "builtins.abs",
        "builtins.round",
        "builtins.max",
        "builtins.min",
    }
)
"""Functions that a program may call besides operators: arithmetic on sizes, and unpacking.

They take arguments by position alone: some have keywords that take a function.
"""

_WITH_FILES = frozenset({("aten", "from_file"), ("aten", "save"), ("debugprims", "load_tensor")})
"""Operators that open a file by its name, which no graph has to do."""

_NAMES = re.compile(r"[A-Za-z_]\w* [A-Za-z_]\w* [A-Za-z_]\w*", re.ASCII)
"""A namespace, a name and an overload, in one match because each operator of a hit is asked."""

_SPECIAL = frozenset(f"__{i}{name}__" for i in ("", "i") for name in ("and", "or", "xor"))
_SPECIAL |= frozenset(f"__{i}{name}__" for i in ("", "i") for name in ("lshift", "rshift"))
"""The operators of aten that are named like Python's own methods."""

NO_NAMESPACES = frozenset({"import_module", "load_library", "loaded_libraries", "_dir"})
NO_OPERATORS = frozenset({"name", "_dir"})
NO_OVERLOADS = frozenset(
    {"op", "overloads", "op_overloads", "_op", "_schemas", "_overload_names", "_dir"}
    | {"_qualified_op_name", "_has_torchbind_op_overload", "_is_protocol"}
)
"""What `torch.ops`, a namespace and an operator have besides namespaces, operators and overloads.

`tests/unit/test_program.py` compares these three with torch.
"""

_DTYPE = r"bool|(?:b?float|complex|q?u?int|bits)[0-9][0-9a-z_]*"
_TORCH_VALUE = (
    rf"{_DTYPE}|strided|jagged|_mkldnn|sparse_(?:coo|csr|csc|bsr|bsc)"
    r"|(?:contiguous|preserve)_format|channels_last(?:_3d)?"
)
"""The names of torch's dtypes, layouts and memory formats."""

_DEVICE = r"[A-Za-z0-9_.:-]*"


class Operator(NamedTuple):
    """A registered operator, or, if `namespace` is "", one of PYTHON_FUNCTIONS.

    The operators of the namespace HIGHER_ORDER are those of CONTROL_FLOW.
    """

    namespace: str
    name: str
    overload: str

    def fault(self) -> str | None:
        """Why the names can't be those of an operator that a program calls; None if they can be.

        The names become part of Python text, in which any other name could reach any object.
        """
        namespace, name, overload = self
        if not namespace:
            known = name in PYTHON_FUNCTIONS and not overload
            return None if known else f"{name!r} is not an allowed function"
        if namespace == HIGHER_ORDER:
            known = name in CONTROL_FLOW and not overload
        elif namespace == STREAMS:
            known = name in STREAM_OPERATORS and overload in {"", "default"}
        else:
            known = _can_be_registered(namespace, name, overload or "default")
        return None if known else f"{namespace}::{name}.{overload} is not an allowed operator"


def _can_be_registered(namespace: str, name: str, overload: str) -> bool:
    parts = f"{namespace} {name} {overload}"
    if _NAMES.fullmatch(parts) is None:
        return False
    if "__" in parts:
        special = {part for part in parts.split() if part.startswith("__") and part.endswith("__")}
        if special and (namespace != "aten" or special != {name} or name not in _SPECIAL):
            return False
    if (namespace, name) in _WITH_FILES or keyword.iskeyword(namespace):
        return False
    return not (namespace in NO_NAMESPACES or name in NO_OPERATORS or overload in NO_OVERLOADS)


def is_dtype(name: str) -> bool:
    """Whether it may be the name of one of torch's dtypes."""
    return re.fullmatch(_DTYPE, name) is not None


class Call(NamedTuple):
    name: str
    operator: int
    args: Plain
    kwargs: Plain

    def values(self) -> Iterator[int]:
        """The values that the arguments refer to, in their order."""
        for arg in self.arguments():
            yield from values_in(arg)

    def arguments(self) -> Iterator[Plain]:
        """The encoded arguments, without the names of keywords: one may be named `value`."""
        yield from self.args
        for _, arg in self.kwargs:
            yield arg

    def with_values(self, values: Iterable[int]) -> Call:
        """The same call with other values, in the order of `values`."""
        numbers = iter(values)
        return self._replace(
            args=[_with(arg, numbers) for arg in self.args],
            kwargs=[[name, _with(arg, numbers)] for name, arg in self.kwargs],
        )


class Constant(NamedTuple):
    """A tensor that belongs to the graph. Its bytes are stored separately under `name`.

    The stored bytes are those of a contiguous copy; `stride` holds the original strides.
    """

    name: str
    dtype: str
    device: str
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Function(NamedTuple):
    """A graph inside a graph. Its constants and operators are those of the program.

    Values are numbered as in a program: its own inputs, the constants, the results of its calls.
    """

    name: str
    inputs: tuple[str, ...]
    calls: tuple[Call, ...]
    outputs: Plain

    def placed(self, rename: Rename) -> Function:
        """The same function with its devices renamed."""
        calls = tuple(
            call._replace(
                args=[rename_devices(arg, rename) for arg in call.args],
                kwargs=[[name, rename_devices(arg, rename)] for name, arg in call.kwargs],
            )
            for call in self.calls
        )
        return self._replace(calls=calls, outputs=rename_devices(self.outputs, rename))

    def to_plain(self, constants: int) -> Plain:
        """The function as plain data, in a program with that many constants."""
        calls = _to_distances(self.calls, len(self.inputs) + constants)
        return [self.name, list(self.inputs), calls, self.outputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A graph as data.

    operators: the operators that `calls` refer to by index.
    functions: the graphs inside the graph; each refers only to those before it.
    disable_autocast: the graph was traced under autocast. The casts are calls of the graph, so
    autocast must be off while the program runs, or it would cast once more.
    notes: for people; None if there are none, or none that make sense.
    """

    inputs: tuple[str, ...]
    constants: tuple[Constant, ...]
    operators: tuple[Operator, ...]
    calls: tuple[Call, ...]
    outputs: Plain
    disable_autocast: bool
    functions: tuple[Function, ...] = ()
    notes: Notes | None = None

    @property
    def main(self) -> Function:
        """The graph itself as a function."""
        return Function(MAIN, self.inputs, self.calls, self.outputs)

    def names_in(self, function: Function) -> list[str]:
        """The names of the values of a function of this program, by their numbers."""
        constants = (constant.name for constant in self.constants)
        return [*function.inputs, *constants, *(call.name for call in function.calls)]

    def placed(self, rename: Rename) -> Program:
        """The same program with its devices renamed."""
        main = self.main.placed(rename)
        return replace(
            self,
            constants=tuple(c._replace(device=rename(c.device)) for c in self.constants),
            calls=main.calls,
            outputs=main.outputs,
            functions=tuple(function.placed(rename) for function in self.functions),
            notes=self.notes and self.notes.placed(rename),
        )

    def to_plain(self) -> dict[str, Plain]:
        return {
            "inputs": list(self.inputs),
            "constants": [[*c[:3], list(c.size), list(c.stride)] for c in self.constants],
            "operators": [list(operator) for operator in self.operators],
            "calls": _to_distances(self.calls, len(self.inputs) + len(self.constants)),
            "outputs": self.outputs,
            "disable_autocast": self.disable_autocast,
            "functions": [each.to_plain(len(self.constants)) for each in self.functions],
            "notes": self.notes.to_plain() if self.notes is not None else None,
        }

    @classmethod
    def from_plain(cls, data: Any) -> Program:
        """The program that `to_plain` wrote. Raises `CorruptEntry` if `data` is not a program."""
        try:
            constants = len(data["constants"])
            program = cls(
                inputs=tuple(map(_identifier, data["inputs"])),
                constants=tuple(_constant(*row) for row in data["constants"]),
                operators=tuple(Operator(*map(str, row)) for row in data["operators"]),
                calls=_calls(data["calls"], len(data["inputs"]) + constants),
                outputs=data["outputs"],
                disable_autocast=bool(data["disable_autocast"]),
                functions=tuple(
                    Function(
                        _identifier(name),
                        tuple(map(_identifier, inputs)),
                        _calls(calls, len(inputs) + constants),
                        out,
                    )
                    for name, inputs, calls, out in data["functions"]
                ),
                notes=_notes(data),
            )
            program.validate()
        except CorruptEntry:
            raise
        except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise CorruptEntry(f"program: {error!r}") from error
        return program

    def validate(self) -> None:
        """Raise `CorruptEntry` if anything is not what a program consists of.

        Whatever passes is text of a closed set of forms: values, numbers, quoted texts, names of
        dtypes and the like, and calls of operators and PYTHON_FUNCTIONS by name.
        """
        for operator in self.operators:
            if (fault := operator.fault()) is not None:
                raise CorruptEntry(f"program: {fault}")
        for index, function in enumerate((*self.functions, self.main)):
            self._check(function, index)

    def _check(self, function: Function, functions: int) -> None:
        """Check one function, which may refer to that many functions before it."""
        known = len(function.inputs) + len(self.constants)
        for call in function.calls:
            if not 0 <= call.operator < len(self.operators):
                raise CorruptEntry(f"program: call {call.name} of operator {call.operator}")
            _check_call(call, self.operators[call.operator], known, functions)
            known += 1
        _check_argument(function.outputs, known)


def _notes(data: Any) -> Notes | None:
    if (notes := data.get("notes")) is None:
        return None
    from npugx_cache.backend.notes import Notes  # a hit decodes no program

    try:
        return Notes.from_plain(notes, len(data["inputs"]), len(data["calls"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # a graph without notes is worth more than none


def _calls(rows: Any, first: int) -> tuple[Call, ...]:
    """The calls that `_to_distances` wrote; `first` is the number of inputs and constants."""
    calls = []
    last = 0
    for own, (name, operator, args, kwargs) in enumerate(rows, first):
        call = Call(_identifier(name), int(operator), args, kwargs)
        numbers = []
        for distance in call.values():
            if distance > 0:
                numbers.append(own - distance)
            else:
                last = (last - distance) % first
                numbers.append(last)
        calls.append(call.with_values(numbers))
    return tuple(calls)


def _to_distances(calls: Iterable[Call], first: int) -> list[Plain]:
    """Calls as plain data in which the calls of equal layers are equal, so that they compress well.

    The number of a result becomes its distance from the call that takes the result, above 0. The
    number of an input or constant, which is below `first`, becomes minus its distance, modulo
    `first`, from the one that was taken before, by this call or an earlier one; at first from 0.
    """
    rows = []
    last = 0
    for own, call in enumerate(calls, first):
        distances = []
        for value in call.values():
            if value >= first:
                distances.append(own - value)
            else:
                distances.append(-((value - last) % first))
                last = value
        rows.append(list(call.with_values(distances)))
    return rows


def _check_call(call: Call, operator: Operator, values: int, functions: int) -> None:
    """Check the arguments of a call, which may refer to that many values and functions."""
    by_position = not operator.namespace or operator.namespace == HIGHER_ORDER
    for name, arg in call.kwargs:
        if by_position or keyword.iskeyword(_identifier(name)):
            raise CorruptEntry(f"program: keyword {name!r} of call {call.name}")
        _check_argument(arg, values)
    graphs: set[int] = set()
    if operator.namespace == HIGHER_ORDER:
        graphs = _GRAPHS[operator.name]
        if len(call.args) != CONTROL_FLOW[operator.name]:
            raise CorruptEntry(f"program: call {call.name} has {len(call.args)} arguments")
    for place, arg in enumerate(call.args):
        if place in graphs:
            _check_graph(arg, functions)
        else:
            _check_argument(arg, values)


def _check_graph(data: Plain, functions: int) -> None:
    match data:
        case [str() as kind, index] if kind == FUNCTION:
            if type(index) is not int or not 0 <= index < functions:
                raise CorruptEntry(f"program: function {index!r} is used before it is defined")
        case _:
            raise CorruptEntry(f"program: {str(data)[:60]} is no graph")


def _check_argument(data: Plain, values: int) -> None:
    """Check that an encoded argument is of one of the forms that become text."""
    match data:
        case [str() as kind, value] if kind == VALUE:
            if type(value) is not int or not 0 <= value < values:
                raise CorruptEntry(f"program: value {value!r} is used before it is computed")
        case ["list" | "tuple" | "size", list() as items]:
            for item in items:
                _check_argument(item, values)
        case ["slice", start, stop, step]:
            for item in (start, stop, step):
                _check_argument(item, values)
        case _ if not _is_scalar(data):
            raise CorruptEntry(f"program: {str(data)[:60]} is no argument")


def _is_scalar(data: Plain) -> bool:
    match data:
        case None | bool() | int() | float() | str() | bytes():
            return True
        case ["bool", int()] | ["int" | "float", str()] | ["complex", str(), str()]:
            return True
        case ["torch", str() as name]:
            return re.fullmatch(_TORCH_VALUE, name) is not None
        case ["device", str() as name]:
            return re.fullmatch(_DEVICE, name) is not None
    return False


def _constant(name: Any, dtype: Any, device: Any, size: Any, stride: Any) -> Constant:
    numbers = tuple(size), tuple(stride)
    if not is_dtype(dtype) or re.fullmatch(_DEVICE, device) is None:
        raise CorruptEntry(f"program: {dtype!r} on {device!r} is no tensor")
    if not all(type(number) is int for number in (*numbers[0], *numbers[1])):
        raise CorruptEntry(f"program: {numbers!r} are no sizes and strides")
    return Constant(_identifier(name), dtype, device, *numbers)


def values_in(data: Plain) -> Iterator[int]:
    """The values that encoded arguments refer to."""
    return _references(data, VALUE)


def _references(data: Plain, kind: str) -> Iterator[int]:
    match data:
        case [str() as found, index] if found == kind:
            yield index
        case ["list" | "tuple" | "size", list() as items] | ["slice", *items]:
            for item in items:
                yield from _references(item, kind)


def _with(data: Plain, numbers: Iterator[int]) -> Plain:
    """An encoded argument with other values, in the order of `values_in`."""
    match data:
        case [str() as found, _] if found == VALUE:
            return [VALUE, next(numbers)]
        case ["list" | "tuple" | "size" as kind, list() as items]:
            return [kind, [_with(item, numbers) for item in items]]
        case ["slice", *items]:
            return ["slice", *(_with(item, numbers) for item in items)]
    return data


def _identifier(name: Any) -> str:
    # Names become part of Python text that is executed: any other text could run code. Python takes
    # many letters outside of ASCII for one of ASCII, so that two names could be one.
    if not isinstance(name, str) or not (name.isascii() and name.isidentifier()):
        raise CorruptEntry(f"program: {name!r} is not an identifier")
    return name
