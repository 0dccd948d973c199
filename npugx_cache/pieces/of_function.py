"""Runs a function that can't be one graph as the pieces that Dynamo makes of it, each cached.

Dynamo traces the function in each process, and decides by its own guards which piece a call needs.
"""

from __future__ import annotations

import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npugx_cache import events, location
from npugx_cache.backend import inference_only
from npugx_cache.entry.break_record import BreakRecord
from npugx_cache.key.recipe import Shaping
from npugx_cache.pieces import compiled
from npugx_cache.private import graph_breaks

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import fx

    from npugx_cache import store
    from npugx_cache.config import Settings
    from npugx_cache.counters import Counters
    from npugx_cache.key.recipe import Recipe
    from npugx_cache.pieces.cached_graph import CachedGraph
    from npugx_cache.pieces.compiled import Caller

_MOST_TOLD = 8


class FunctionPieces:
    """What runs the calls of one binding in pieces.

    Bindings of one function share what Dynamo has compiled for any of them. A piece is counted in
    the binding whose call needed it first.
    """

    def __init__(self, recipe: Recipe, settings: Settings, counters: Counters) -> None:
        self._caller = compiled.Caller(recipe.title, counters)
        self._backend = _backend_of(recipe, settings)
        self._compiled = torch.compile(
            recipe.function, backend=self._backend, dynamic=recipe.dynamic
        )
        self._records: dict[str, tuple[BreakRecord, tuple[int, int]]] = {}
        """The records of notes as they are now, and what was known of the pieces then."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call. Raises what the function raises, and what the user asked the cache for."""
        entered, breaks = _caller.set(self._caller), graph_breaks.count()
        try:
            with graph_breaks.errors_run_eagerly() as failed:
                result = self._compiled(*args, **kwargs)
        except _Raised as raised:
            raise raised.error from None
        else:
            self._note(failed)  # where the function raises, the failure is its own
            return result
        finally:
            self._backend.has_run = True
            _caller.reset(entered)
            self._note(graph_breaks.since(breaks))

    def _note(self, breaks: Iterable[graph_breaks.Break]) -> None:
        for text, frames in breaks:
            place = location.of_frames(frames)
            self._backend.ends.setdefault(str(place), (place, text))

    def record_pieces(
        self,
        reason: str,
        note: str,
        opened: store.Store | None,
        without_texts: Callable[[str], str],
    ) -> None:
        """After a call: tell of the breaks once, and record the pieces beside the stored refusal.

        `reason` and `note` are those of the refusal. `without_texts` removes texts of the call.
        """
        backend = self._backend
        record, seen = self._records.get(note) or (_read(opened, note), None)
        now = len(backend.made), len(backend.ends)
        if not backend.made:  # Dynamo gave up before any operation, as it does in generators
            self._caller.counters.add("bypasses")
        if seen == now:
            return
        breaks = list(record.breaks or (reason,))
        for place, text in list(backend.ends.values()):
            if not any(str(place) in known for known in breaks):
                from npugx_cache.trace import refuse  # loads the tracer, which a restart needs not

                breaks.append(without_texts(refuse.of_break(text, place)))
        breaks = list(dict.fromkeys(breaks))
        pieces = dict.fromkeys([*record.pieces, *(made.entry for made in backend.known_pieces())])
        new = BreakRecord(tuple(filter(None, pieces)), tuple(breaks))
        self._records[note] = new, now
        if reason not in backend.told:
            backend.told.add(reason)
            events.logger.warning("%s %s", self._caller.title, self._words(breaks))
        if note and opened is not None and new != record:
            fault = opened.write_record(note, new.plain())
            if fault is not None:
                events.logger.debug("%s: pieces not recorded: %s", self._caller.title, fault)

    @property
    def count(self) -> int:
        return len(self._backend.made)

    def explain_pieces(self, reason: str) -> Iterator[events.Refusal]:
        """That the function runs in pieces, and then how each piece came about."""
        known = [record.breaks for record, _ in self._records.values() if reason in record.breaks]
        yield events.Refusal(entry="", reasons=(self._words(known[0] if known else (reason,)),))
        for number, made in enumerate(self._backend.known_pieces(), 1):
            yield events.Refusal(
                entry=made.entry or "", reasons=(f"piece {number}: {made.outcome}",)
            )

    def _words(self, breaks: Sequence[str]) -> str:
        told = [location.without_pieces(text) for text in breaks[:_MOST_TOLD]]
        if len(told) > 1:
            told = [f"({number}) {text}" for number, text in enumerate(told, 1)]
        more = f"; and {len(breaks) - _MOST_TOLD} more" if breaks[_MOST_TOLD:] else ""
        how = "in pieces"
        if not self._backend.has_run:
            how += ", which are restored or compiled when a call runs"
        elif not self._backend.made:
            how = "uncached, no part of it being a graph"
        return f"runs {how}, because it can't be one graph: {'; '.join(told)}{more}"


class Made(NamedTuple):
    """One piece of this process: its entry, None if it is not stored, and how it came about."""

    entry: str | None
    outcome: str


class _Raised(BaseException):
    """Carries an error past those who catch any `Exception`: Dynamo, and the user's function."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Backend:
    """The backend of one function. It holds no function, because Dynamo keeps it with the code."""

    def __init__(
        self, title: str, shaping: Shaping, settings: Settings, dynamic: bool | None
    ) -> None:
        self.made_with = title, shaping, settings, dynamic
        self.made: dict[str, Made] = {}
        self.ends: dict[str, tuple[location.Place | None, str]] = {}
        """The lines at which graphs end, and what Dynamo says of them."""
        self.told: set[str] = set()
        """The refusals of which the log has the breaks."""
        self.has_run = False

    def known_pieces(self) -> tuple[Made, ...]:
        return tuple(self.made.values())

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CachedGraph:
        _, shaping, settings, _ = self.made_with
        # Calls run with gradients off, but a function may switch them on inside.
        gradients = inference_only.needing_grad(graph_module)
        inference_only.call_without_grad(graph_module)
        try:
            graph = compiled.of_graph(
                graph_module,
                example_inputs,
                shaping,
                settings,
                captures=True,
                caller=_caller.get(None),
            )
        except Exception as error:
            if settings.strict or isinstance(error, compiled.ASKED_FOR):
                raise _Raised(error) from None
            raise
        name = graph.entry or f"{len(self.made)}"
        self.made.setdefault(name, Made(graph.entry, _outcome(graph)))
        return graph.for_inference(gradients)


_caller: ContextVar[Caller] = ContextVar("npugx_cache_caller")
"""Whose call is running, for the pieces that it needs."""

_backends: weakref.WeakKeyDictionary[types.FunctionType, list[_Backend]] = (
    weakref.WeakKeyDictionary()
)


def _backend_of(recipe: Recipe, settings: Settings) -> _Backend:
    """One backend for all bindings of a function, because Dynamo compiles again for another one.

    Partials of several functions have one function of ours, and different titles.
    """
    shaping = Shaping(
        backend=recipe.backend, options=recipe.options, decompositions=recipe.decompositions
    )
    made_with = recipe.title, shaping, settings, recipe.dynamic
    known = _backends.setdefault(recipe.function, [])
    for backend in known:
        if backend.made_with == made_with:
            return backend
    known.append(_Backend(*made_with))
    return known[-1]


def _read(opened: store.Store | None, note: str) -> BreakRecord:
    return BreakRecord.of(opened.read_record(note)) if note and opened else BreakRecord()


def _outcome(graph: CachedGraph) -> str:
    first = next(iter(graph.explain()), None)
    if first is None:
        return "compiled, and not stored"
    if first.entry and first.entry == graph.entry:
        return "; ".join(first.reasons)
    return f"{'compiled' if graph.entry else 'not stored'}: {first}"
