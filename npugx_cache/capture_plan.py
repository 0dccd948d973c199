"""Capture plans: a worker records which device graphs it captured; the next captures them ahead.

A plan never decides whether a graph may run. A graph that was captured ahead runs for the calls
that its entry accepts and that have its key, like a graph that was captured during a call.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

from npugx_cache import events, store
from npugx_cache.backend.capture import planned
from npugx_cache.backend.program import COLLECTIVES
from npugx_cache.counters import Warmed
from npugx_cache.entry import capture_plan_format, restore
from npugx_cache.entry.artifact import BINDINGS, CONDITIONS, CONSTANTS, LIBRARY, Bindings
from npugx_cache.errors import CorruptEntry
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.key import environment
from npugx_cache.key.fingerprint import Fingerprint
from npugx_cache.portable import NotPortable
from npugx_cache.records import NamedTuple
from npugx_cache.store.upkeep import flushing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npugx_cache.answer.lookup import Lookup
    from npugx_cache.backend.capture.captured import Tally
    from npugx_cache.backend.capture.runner import Runner
    from npugx_cache.entry.restore import Specialisation
    from npugx_cache.key.recipe import Recipe

_MAX_ROWS = 256


class Row(NamedTuple):
    """One captured graph of a plan. `uses` counts the replays in all processes together.

    `shape` is a text for people. `nbytes` and `seconds` are what the last capture cost.
    """

    planned: planned.Planned
    shape: str
    uses: int
    nbytes: int
    seconds: float


class GraphInfo(NamedTuple):
    """One graph that is captured now. `entry` is empty if the graph is not stored."""

    entry: str
    shape: str
    replays: int
    nbytes: int
    seconds: float


def graphs_of(specialisations: Iterable[Specialisation]) -> tuple[GraphInfo, ...]:
    """The captured graphs of a function, the most used first."""
    found = [
        GraphInfo(known.entry or "", g.tally.planned.shape, g.replays, g.nbytes, g.seconds)
        for known in specialisations
        if (runner := runner_of(known)) is not None
        for g in runner.graphs()
    ]
    return tuple(sorted(found, key=lambda graph: -graph.replays))


def runner_of(known: Specialisation) -> Runner | None:
    """The object that captures the graphs of a specialisation, if it captures any."""
    graph: Any = known.graph
    return graph if hasattr(graph, "prepare") else None


# --- recording


class Recorder:
    """Writes the plans of one function soon after a capture, and when the function is gone.

    Holds the tallies of graphs and not the graphs, whose memory is freed with the function.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = weakref.ref(lookup)
        self._store: store.Store | None = None
        self._entries: dict[str, tuple[Tally, ...]] = {}
        self._counted: dict[Tally, int] = {}
        weakref.finalize(lookup, self._finish)

    def note_captures(self) -> None:
        """Note the graphs that are captured now, and write them soon."""
        lookup = self._lookup()
        if lookup is None:
            return
        self._store = lookup.open_store()
        for known in lookup.bound:
            runner = runner_of(known)
            if known.entry is not None and runner is not None:
                tallies = (*self._entries.get(known.entry, ()), *(g.tally for g in runner.graphs()))
                self._entries[known.entry] = tuple(dict.fromkeys(tallies))
        flushing.has_hits(self)

    def _finish(self) -> None:
        with contextlib.suppress(Exception):  # at the end of a process modules may be gone
            self.flush()

    def flush(self) -> None:
        """Merge the graphs captured in this process into the recorded plans. Best effort."""
        flushing.note_flush(self)
        opened = self._store
        if opened is None or opened.readonly is not None:
            return
        for entry, tallies in list(self._entries.items()):
            self._record(opened, entry, tallies)

    def _record(self, opened: store.Store, entry: str, tallies: tuple[Tally, ...]) -> None:
        rows = {row.planned.identity: row for row in read(opened, entry)}
        for tally in tallies:
            what, new = tally.planned, tally.replays - self._counted.get(tally, 0)
            self._counted[tally] = tally.replays
            before = rows[what.identity].uses if what.identity in rows else 0
            row = Row(what, what.shape, before + new, tally.nbytes, tally.seconds)
            rows[what.identity] = row
        kept = sorted(rows, key=lambda identity: -rows[identity].uses)[:_MAX_ROWS]
        # In the order of their capture.
        ordered = [row for identity, row in rows.items() if identity in kept]
        fault = opened.write_record(entry, to_plain(ordered)) if tallies else None
        if fault is not None:
            events.logger.debug("capture plan of %s not written: %s", entry[:12], fault)


def to_plain(rows: list[Row]) -> Any:
    """A plan as plain data. Inputs that graphs share, as most parameters, are written once."""
    table: dict[Any, int] = {}
    plain = []
    for row in rows:
        specs = (*row.planned.inputs, *row.planned.labels)
        inputs = [table.setdefault(spec, len(table)) for spec in specs]
        about = [row.planned.inference, row.planned.obstacle, row.shape]
        plain.append([inputs, *about, row.uses, row.nbytes, row.seconds])
    return {"inputs": [planned.plain_spec(spec) for spec in table], "graphs": plain}


def read(opened: store.Store, entry: str) -> list[Row]:
    """The recorded plan of an entry in the order of capture; empty if there is none."""
    record = opened.read_record(entry)
    if record is None:
        return []
    try:
        return _rows(record)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        events.logger.debug("capture plan of %s not read: %r", entry[:12], error)
        return []


def _rows(record: Any) -> list[Row]:
    graphs = capture_plan_format.graphs_of(record)
    table = [planned.checked(spec) for spec in record["inputs"]]
    return [
        Row(
            planned.of_specs(
                (table[i] for i in graph.inputs), inference=graph.inference, obstacle=graph.obstacle
            ),
            graph.shape,
            graph.uses,
            graph.nbytes,
            graph.seconds,
        )
        for graph in graphs
    ]


# --- capturing ahead


def warm(lookup: Lookup, bound: tuple[Specialisation, ...]) -> tuple[list[Specialisation], Warmed]:
    """Bind the entries of a function that have plans, and capture the graphs in these plans.

    A fault raises only under `strict`, because a worker can start without captured graphs.
    """
    made: list[Specialisation] = []
    try:
        opened, reason = lookup.open_store(), _unfit(lookup)
        if opened is None or reason:
            return [], Warmed(refused=(reason,) if reason else ())
        refused: list[str] = []
        wanted = [(known, read(opened, known.entry)) for known in bound if known.entry]
        here = {known.entry for known in bound}
        for manifest in _manifests(lookup.recipe, opened):
            rows = read(opened, manifest.entry) if manifest.entry not in here else []
            if rows:
                answer = _bind_entry(lookup, opened, manifest)
                if isinstance(answer, str):
                    refused.append(f"{manifest.entry[:12]}: {answer}")
                    continue
                made.append(answer)
                wanted.append((answer, rows))
        captured, more = _capture(wanted)
        return made, Warmed(len(made), captured, (*refused, *more))
    except Exception as error:
        if lookup.settings.strict:
            raise
        let_through(error)
        events.logger.exception("%s: capture plan not used", lookup.recipe.title)
        return made, Warmed(len(made), 0, (f"a fault of the cache: {error!r}",))


def _unfit(lookup: Lookup) -> str:
    if lookup.recipe.guards != "full":
        return f"guards={lookup.recipe.guards!r} binds an entry to the first call that it accepts"
    if lookup.settings.verify == "recompile":
        return "NPUGX_CACHE_VERIFY=recompile compiles every entry again, at its first call"
    return environment.obstacle(untested_torch=lookup.settings.untested_torch) or ""


def _manifests(recipe: Recipe, opened: store.Store) -> Iterator[store.Manifest]:
    """The entries that a call could use, as far as that is known without its arguments."""
    keys: dict[frozenset[str], str] = {}
    for manifest in opened.siblings(recipe.identity):
        kinds = environment.device_kinds(name for name, *_ in manifest.factors)
        if kinds not in keys:
            factors = (*recipe.factors(), *environment.factors(kinds))
            keys[kinds] = Fingerprint.of(factors).key
        if manifest.kind == "graph" and manifest.key == keys[kinds]:
            yield manifest


def _bind_entry(
    lookup: Lookup, opened: store.Store, manifest: store.Manifest
) -> Specialisation | str:
    """An entry bound before any call, or why it is not. Its conditions are checked at each call."""
    present = {ref.name for ref in manifest.blobs}
    blobs = opened.read(manifest, present & {CONDITIONS, BINDINGS, CONSTANTS, LIBRARY})
    if isinstance(blobs, store.Miss):
        return blobs.reason
    try:
        candidate = restore.candidate(blobs)
        if any(op.namespace == COLLECTIVES for _, op in Bindings.unpack(blobs[BINDINGS]).operators):
            return "its ranks communicate, so they capture together, at a call"
        known = restore.bind(
            blobs,
            lookup.recipe.function,
            entry=manifest.entry,
            conditions=candidate,
            switches=environment.call_state(),
            captures=lookup.captures,
            demanded=candidate.conditions,
        )
    except (CorruptEntry, NotPortable) as error:
        return str(error)
    opened.record_hit(manifest)
    lookup.counters.count_lookup("hits", seconds=manifest.cost_seconds)
    return known


def _capture(wanted: list[tuple[Specialisation, list[Row]]]) -> tuple[int, list[str]]:
    pairs = [(known, row) for known, rows in wanted for row in rows]
    captured: int = 0
    refused: list[str] = []
    for known, row in sorted(pairs, key=lambda pair: -pair[1].uses):
        entry = (known.entry or "")[:12]
        runner = runner_of(known)
        if runner is None:
            refused.append(f"{entry}: {row.shape}: this process does not capture it")
            continue
        reason = runner.prepare(row.planned)
        if reason:
            refused.append(f"{entry}: {row.shape}: {reason}")
        else:
            captured += 1
    return captured, refused
