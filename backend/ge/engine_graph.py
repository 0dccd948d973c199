"""EngineGraph: a graph for the graph engine (GE), and how to call it, as data."""

from __future__ import annotations

import hashlib
from typing import Any

import msgpack

from npugx_cache.errors import CorruptEntry
from npugx_cache.private.graph_engine import Definition
from npugx_cache.records import NamedTuple, dataclass

_LONGEST = 1 << 30
_MOST = 1 << 20

TENSOR, CONTIGUOUS, NUMBERS = "tensor", "contiguous", "numbers"
"""How an input of the engine is made of the graph's arguments: as it is, in contiguous memory, or
as a tensor on the host of the numbers that some arguments are."""
_KINDS = (TENSOR, CONTIGUOUS, NUMBERS)


class Input(NamedTuple):
    """`kind` is one of the above, `arguments` are positions of the graph's arguments."""

    kind: str
    arguments: tuple[int, ...]


class Result(NamedTuple):
    """A result of the graph: the result of the engine at `place`, and how it is laid out.

    The engine's results are contiguous. `order`: the axes of the graph's result from the one with
    the largest stride to the one with the smallest; empty if the result is contiguous. `copied`: an
    earlier result is the same result of the engine, and no two share memory.
    """

    place: int
    order: tuple[int, ...]
    copied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGraph:
    """What the engine is given, and how a call of the graph becomes a call of the engine.

    engine: the options of the engine, which a process starts once.
    written: pairs of a result of the engine, and the input of the engine that it is written to.
    updated: inputs of the engine whose memory it changes; their arguments get a copy back where the
    input is a copy.
    models: the compiled model's files by ending; empty if GE compiles the graph in each process.
    compiled_as: the digest under which GE compiled the model, or "".
    """

    definition: Definition
    engine: tuple[tuple[str, str], ...]
    inputs: tuple[Input, ...]
    results: tuple[Result, ...]
    written: tuple[tuple[int, int], ...]
    updated: tuple[int, ...]
    models: tuple[tuple[str, bytes], ...] = ()
    compiled_as: str = ""

    def pack(self) -> bytes:
        fields = {name: getattr(self, name) for name in _FIELDS}
        return bytes(msgpack.packb(fields, use_bin_type=True))

    @classmethod
    def unpack(cls, data: bytes) -> EngineGraph:
        """The graph in stored bytes; raises `CorruptEntry`."""
        try:
            plain = msgpack.unpackb(
                data,
                strict_map_key=True,
                use_list=False,
                max_bin_len=_LONGEST,
                max_str_len=_LONGEST,
                max_array_len=_MOST,
                max_map_len=_MOST,
                max_ext_len=0,
            )
            return cls(
                definition=_definition(*plain["definition"]),
                engine=_options(plain["engine"]),
                inputs=tuple(_input(kind, each) for kind, each in plain["inputs"]),
                results=tuple(Result(int(i), _numbers(o), bool(c)) for i, o, c in plain["results"]),
                written=tuple((int(result), int(index)) for result, index in plain["written"]),
                updated=_numbers(plain["updated"]),
                models=tuple((str(ending), _bytes(file)) for ending, file in plain["models"]),
                compiled_as=str(plain["compiled_as"]),
            )
        except (KeyError, TypeError, ValueError, msgpack.UnpackException) as error:
            raise CorruptEntry(f"graph for the graph engine: {error!r}") from error

    def digest(self, versions: str) -> str:
        """Names what GE compiles: the graph, all options, and the versions of CANN and the chip."""
        whole = hashlib.sha256()
        graph, options, *_ = self.definition
        for part in (graph, *(str(each).encode() for each in (options, self.engine, versions))):
            whole.update(len(part).to_bytes(8, "little") + part)
        return whole.hexdigest()


_FIELDS = tuple(EngineGraph.__annotations__)


def _definition(
    graph: Any, options: Any, placements: Any, dtypes: Any, executor: Any, inputs: Any, outputs: Any
) -> Definition:
    shapes = (tuple(map(_numbers, each)) for each in (inputs, outputs))
    numbers = (_numbers(placements), _numbers(dtypes), int(executor))
    return Definition(_bytes(graph), _options(options), *numbers, *shapes)


def _options(values: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in values)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} in the place of bytes")
    return value


def _numbers(values: Any) -> tuple[int, ...]:
    return tuple(map(int, values))


def _input(kind: str, arguments: Any) -> Input:
    if kind not in _KINDS:
        raise ValueError(f"an input that is made as {kind!r}")
    return Input(kind, _numbers(arguments))
