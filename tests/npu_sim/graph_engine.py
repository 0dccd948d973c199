"""The simulated graph engine (GE) in a test process: after `install()`, graphs run on the CPU.

A compiled model is kept as CANN keeps it: in the folder of the option `ge.graph_compiler_cache_dir`
under the name of the option `ge.graph_key`, whatever the graph. It holds the graph that was
compiled, so a stale model gives that graph's results.
"""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from graph_operators import OF_TENSORS, OPERATORS, Operator, constant
from wire_format import MODEL, read

CACHE, KEY = "ge.graph_compiler_cache_dir", "ge.graph_key"
_MARK = b"simulated model\n"
_NUMBERS = {dtype: number for number, dtype in OF_TENSORS.items()}

events: list[tuple[str, int]] = []
"""What the engine did, in order: "compile", "load" (a kept model) or "run", and of which graph."""


class _Plain(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dims", ctypes.c_int64 * 8),
        ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    )


_Compile = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p
)
_Run = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_Plain), ctypes.c_int32),
    *(ctypes.POINTER(_Plain), ctypes.c_int32),
)
_graphs: dict[int, list[Operator]] = {}
_options: dict[int, dict[str, str]] = {}
_kept: list[Any] = []


def _stub() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(os.environ["NPU_STUB_LIB"]) / "libnpustub.so"))


def install() -> None:
    """Let this process compile and run graphs."""
    if not _kept:
        _kept[:] = [_Compile(_compile), _Run(_run)]
        _stub().graph_engine_install(*_kept)


def started() -> dict[str, str]:
    """The options that the engine was started with; empty if it was not."""
    stub = _stub()
    stub.graph_engine_started.restype = ctypes.c_char_p
    return _pairs(stub.graph_engine_started())


def options(graph: int) -> dict[str, str]:
    """The options of a compiled graph."""
    return _options[graph]


def types(graph: int) -> list[str]:
    """The types of the operators of a compiled graph."""
    return [each.type for each in _graphs[graph]]


def _pairs(lines: bytes) -> dict[str, str]:
    return dict(line.split("=", 1) for line in lines.decode().splitlines())


def _guarded(work: Any, *arguments: Any) -> int:
    try:
        work(*arguments)
    except Exception:
        traceback.print_exc(file=sys.stderr)
        return 1
    return 0


def _compile(graph: int, data: int, size: int, lines: bytes) -> int:
    return _guarded(_compile_graph, graph, ctypes.string_at(data, size), _pairs(lines))


def _compile_graph(graph: int, data: bytes, chosen: dict[str, str]) -> None:
    _options[graph] = chosen
    path = Path(chosen[CACHE]) / f"{chosen[KEY]}.om" if CACHE in chosen else None
    if path is not None and path.exists():
        model = path.read_bytes()
        assert model.startswith(_MARK), "not a model"
        assert "NPUGX_TEST_MODELS" not in os.environ, "models are refused"
        data = model.removeprefix(_MARK)
        events.append(("load", graph))
    else:
        events.append(("compile", graph))
        if path is not None:
            path.write_bytes(_MARK + data)
    (plain,) = read(data, MODEL)["graph"]
    _graphs[graph] = [Operator(each) for each in plain["op"]]


def _run(graph: int, inputs: Any, count: int, outputs: Any, results: int) -> int:
    return _guarded(_run_graph, graph, inputs[:count], [outputs[i] for i in range(results)])


def _run_graph(graph: int, inputs: list[_Plain], outputs: list[_Plain]) -> None:
    events.append(("run", graph))
    made = interpret(_graphs[graph], [_tensor(each) for each in inputs])
    # Copies, because a result may be an input that another result is written to.
    copies = [each.clone(memory_format=torch.contiguous_format) for each in made]
    for place, each in zip(outputs, copies, strict=True):
        if place.data:
            _tensor(place).copy_(each)
        else:
            _allocate(place, each)


def _allocate(place: _Plain, value: torch.Tensor) -> None:
    size = value.numel() * value.element_size()
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    place.data = libc.malloc(max(size, 64))
    ctypes.memmove(place.data, value.data_ptr(), size)
    place.rank, place.dtype = value.dim(), _NUMBERS[value.dtype]
    for axis, length in enumerate(value.shape):
        place.dims[axis] = length


def _tensor(plain: _Plain) -> torch.Tensor:
    dtype, size = OF_TENSORS[plain.dtype], list(plain.dims[: plain.rank])
    count = torch.Size(size).numel()
    if not count:
        return torch.empty(size, dtype=dtype)
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(plain.data)
    return torch.frombuffer(memory, dtype=dtype).reshape(size)


def interpret(operators: list[Operator], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a graph, whose operators may stand in any order."""
    values: dict[str, tuple[Any, ...]] = {}
    results: list[torch.Tensor] = []
    pending = operators
    while pending:
        later = []
        for op in pending:
            if any(each and _source(each)[0] not in values for each in op.inputs):
                later.append(op)
            elif op.type == "NetOutput":
                results = [_value(values, each) for each in op.inputs]
            else:
                values[op.name] = _results(op, values, inputs)
        assert len(later) < len(pending), f"a circle: {[each.name for each in later]}"
        pending = later
    return results


def _results(op: Operator, values: dict[str, Any], inputs: list[torch.Tensor]) -> tuple[Any, ...]:
    if op.type == "Data":
        given = inputs[op["index"]["i"]]
        # The vendor gives a number as a tensor of one element, and declares a scalar.
        is_number = given.shape == (1,) and not op.described[0]["shape"]["dim"]
        return (given.reshape(()) if is_number else given,)
    if op.type == "Const":
        return (constant(op),)
    made = OPERATORS[op.type](op, *(_value(values, each) for each in op.inputs))
    return made if isinstance(made, tuple) else (made,)


def _source(name: str) -> tuple[str, int]:
    source, _, index = name.rpartition(":")
    return source, int(index)


def _value(values: dict[str, Any], name: str) -> Any:
    if not name:
        return None
    source, index = _source(name)
    return values[source][index]
