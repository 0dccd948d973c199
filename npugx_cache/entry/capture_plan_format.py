"""The stored form of a capture plan, which lies beside its entry. Does not import torch."""

from __future__ import annotations

from typing import Any

from npugx_cache.records import NamedTuple


class RecordedGraph(NamedTuple):
    """One captured graph of a plan. A plan lists its graphs in the order of capture.

    `inputs` are positions in the plan's table of inputs. `uses` counts the replays in all
    processes. `obstacle` says why the graph can't be captured before a call brings its tensors, or
    is "". `shape` is a text for people.
    """

    inputs: list[int]
    inference: bool
    obstacle: str
    shape: str
    uses: int
    nbytes: int
    seconds: float


def graphs_of(record: Any) -> list[RecordedGraph]:
    """The graphs of a record; none if `record` is None. Raises ValueError if it is no plan."""
    if record is None:
        return []
    rows = record.get("graphs") if isinstance(record, dict) else None
    if not isinstance(rows, list):
        raise ValueError("not a capture plan")  # noqa: TRY004 - of what is stored, no argument
    return [_graph(row) for row in rows]


def _graph(row: Any) -> RecordedGraph:
    match row:
        case [
            list(inputs), bool(inference), str(obstacle), str(shape),
            int(uses), int(nbytes), float(seconds),
        ] if all(type(i) is int and i >= 0 for i in inputs):  # fmt: skip
            return RecordedGraph(inputs, inference, obstacle, shape, uses, nbytes, seconds)
    raise ValueError("not a graph of a capture plan")
