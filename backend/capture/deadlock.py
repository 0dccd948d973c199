"""Finds communication kernels of a captured graph that could deadlock over vector cores.

A kernel of schedule mode 1 starts only when all vector cores that it needs are free at once. If
two such kernels on unordered streams together need more cores than the device has, each may wait
for cores that the other holds. This module reads the trace that `NPUGraph.debug_dump` writes.
"""

from __future__ import annotations

import graphlib
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COMMUNICATES = re.compile("aiv_|dispatch|combine", re.IGNORECASE)
_SYNCHRONISES = re.compile(r"(EVENT_RECORD|EVENT_WAIT|MEM_WRITE_VALUE|MEM_WAIT_VALUE)_(\d+)")
_RECORDS = ("EVENT_RECORD", "MEM_WRITE_VALUE")


class Task(NamedTuple):
    """One task of a stream. `cores`: vector cores that it takes all at once; 0 for most tasks."""

    stream: str
    number: int
    name: str
    cores: int

    def __str__(self) -> str:
        return f"{self.name} (task {self.number} of {self.stream}, {self.cores} cores)"


def conflicts(rows: Sequence[Any], vector_cores: int) -> list[str]:
    """The possible deadlocks, in words. Raises ValueError if `rows` is not a trace."""
    try:
        streams, order = _streams(rows)
        before = _predecessors(streams, order)
        return _conflicts(before, vector_cores)
    except graphlib.CycleError as error:
        around = " -> ".join(map(str, error.args[1]))
        return [f"streams wait for one another in a circle: {around}"]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a trace of a graph: {error!r}") from error


def _streams(rows: Sequence[Any]) -> tuple[dict[str, list[Task]], list[tuple[str, str]]]:
    """The tasks of each stream in order, and pairs of a stream and the stream that it activates."""
    streams: dict[str, list[Task]] = defaultdict(list)
    continued = []
    for row in rows:
        if row.get("ph") != "X" or "tid" not in row or "args" not in row:
            continue
        args, stream = row["args"], str(row["tid"])
        streams[stream].append(Task(stream, int(args.get("Task Id", 0)), row["name"], _cores(row)))
        if "Active Stream Id" in args:
            continued.append((stream, f"stream{args['Active Stream Id']}"))
    for tasks in streams.values():
        tasks.sort(key=lambda task: task.number)
    return dict(streams), continued


def _cores(row: Mapping[str, Any]) -> int:
    args = row["args"]
    if args.get("Schem Mode") != 1 or not _COMMUNICATES.search(row["name"]):
        return 0
    kind, blocks = args.get("Task Type"), int(args.get("Numblocks", 0))
    if kind in ("KERNEL_AIVEC", "KERNEL_MIX_AIV"):
        return blocks
    if kind == "KERNEL_MIX_AIC" and args.get("Task Ration") != 0:  # the runtime's spelling
        return 2 * blocks
    return 0


def _predecessors(
    streams: Mapping[str, Sequence[Task]], continued: Sequence[tuple[str, str]]
) -> dict[Task, set[Task]]:
    """For each task, the tasks that must end before it.

    They are the task before it in its stream, the record of the event that it waits for, and, for
    the first task of a stream, the last task of the stream that activates that stream.
    """
    before: dict[Task, set[Task]] = {}
    records: dict[str, Task] = {}
    waits: list[tuple[str, Task]] = []
    for tasks in streams.values():
        for index, task in enumerate(tasks):
            before[task] = {*tasks[max(index - 1, 0) : index]}
            if found := _SYNCHRONISES.fullmatch(task.name):
                kind, handle = found.groups()
                if kind in _RECORDS:
                    records[handle] = task
                else:
                    waits.append((handle, task))
    for handle, task in waits:
        if handle in records:
            before[task].add(records[handle])
    for host, active in continued:
        if active != host and active in streams:
            before[streams[active][0]].add(streams[host][-1])
    return before


def _conflicts(before: Mapping[Task, set[Task]], vector_cores: int) -> list[str]:
    greedy = [task for task in before if task.cores]
    bits = {task: 1 << index for index, task in enumerate(greedy)}
    reached: dict[Task, int] = {}  # bits of the greedy tasks before a task, and of the task itself
    for task in graphlib.TopologicalSorter(before).static_order():
        mask = bits.get(task, 0)
        for earlier in before[task]:
            mask |= reached[earlier]
        reached[task] = mask
    return [
        f"{first} and {second} may run at once; the device has {vector_cores} vector cores"
        for index, first in enumerate(greedy)
        for second in greedy[index + 1 :]
        if first.stream != second.stream
        and first.cores + second.cores > vector_cores
        and not reached[first] & bits[second]
        and not reached[second] & bits[first]
    ]
