"""Runs the calls that can't be cached, says why, and notes the refusal for other processes."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache import events, store
from npugx_cache.answer.failed_traces import Failed, Untraced
from npugx_cache.answer.notes import OF_RUN, bypass_draft, conditions_in
from npugx_cache.answer.outcomes import Bypass
from npugx_cache.entry.artifact import CONDITIONS, pack_conditions
from npugx_cache.entry.restore import Specialisation
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.key.signature import without_texts
from npugx_cache.private import compile_lock
from npugx_cache.store_client import USUAL, StoreClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npugx_cache.answer.notes import Call
    from npugx_cache.config import Settings
    from npugx_cache.counters import Counters
    from npugx_cache.entry.failed_run import Failure
    from npugx_cache.key.recipe import Recipe
    from npugx_cache.pieces.of_function import FunctionPieces
    from npugx_cache.specialisations import Specialisations
    from npugx_cache.trace.outcomes import LocalOnly, Untraceable

_MAX_NOTES = 8
_IN_PIECES = "pieces"  # the outcome of a lookup whose call runs in pieces
_OTHER_SIZES = "the graph holds for other sizes than the data of this call give: "
_NO_GRAD = (
    "called with grad on and with a model in training mode, but results of cached calls carry no "
    "grad; call .eval() for inference, or the function itself for training"
)


class UncachedCalls(StoreClient):
    """The calls of one function for which there is no graph, or none that may be stored."""

    def __init__(
        self,
        recipe: Recipe,
        settings: Settings,
        counters: Counters,
        bound: Specialisations,
    ) -> None:
        super().__init__(recipe.title, recipe.backend, settings, counters)
        self.recipe = recipe
        self.bound = bound
        self._untraced = Untraced()
        self._failed: dict[str, str] = {}
        """Why the graph of a call was withdrawn, by `Signature.exact`."""
        self._pieces: FunctionPieces | None = None
        """What runs the calls that can't be one graph, if the user wants pieces."""

    def withdraw(self, failure: Failure, call: Call) -> None:
        """Give up a graph that raised at a call that the function itself can run.

        The entry goes to quarantine, and the store notes the refusal under the entry's conditions,
        because each other worker would meet the same failure. A graph that the data of this call do
        not fit stays, because it is right for others.
        """
        if failure.by_data:
            text = without_texts(_OTHER_SIZES + failure.text, call.scope.frame_locals)
            self._bypass(text, OF_RUN)
            return
        graph = failure.graph
        reason = f"its compiled graph failed where the function itself does not: {failure.text}"
        reason = without_texts(reason, call.scope.frame_locals)
        self.bound.remove(graph)
        self._failed[call.signature.exact] = reason
        self._bypass(reason, OF_RUN)
        opened = self.open_store()
        if opened is None or graph.entry is None:
            return
        for manifest in opened.candidates(call.fingerprint.key).manifests:
            if manifest.entry == graph.entry:
                conditions = opened.read(manifest, [CONDITIONS])
                if isinstance(conditions, dict):
                    draft = bypass_draft(self.recipe, call, reason, conditions, of_graph=OF_RUN)
                    opened.publish(draft)
                opened.quarantine(manifest, reason)

    def _end_uncached(
        self, outcome: LocalOnly | Untraceable, call: Call, *, warming: bool
    ) -> Specialisation | Bypass:
        from npugx_cache.trace.outcomes import LocalOnly

        if isinstance(outcome, LocalOnly):
            self._note_bypass(self._draft_of(outcome, call))
            self._warn(outcome.reason)
            self._count("bypasses", USUAL)
            code = self.recipe.function.__code__
            return Specialisation(None, outcome, outcome.run, call.scope.switches, code)
        if outcome.lasting and outcome.raised:
            in_pieces = outcome.breaks and self.recipe.breaks
            # Whether the function itself raises, too.
            unknown = warming or (self.settings.strict and not in_pieces)
            return (
                self._bypass(outcome.reason) if unknown else self._run_before_noting(outcome, call)
            )
        if outcome.lasting:
            draft = self._draft_of(outcome, call)
            failed = Failed(outcome.reason, outcome.breaks, self._note_bypass(draft))
            kind, conditions = call.signature.kind, conditions_in(draft)
            self._untraced.remember(kind, failed, conditions, call.scope)
            return self._run_in_pieces_or_eagerly(failed, call.scope.frame_locals)
        # The reason is not in the function, so it is no error under `strict` either.
        self._count("bypasses", "busy")
        self._end_in_bypass(outcome.reason)
        events.logger.info("%s runs uncached once: %s", self.title, outcome.reason)
        return Bypass(outcome.reason)

    def _run_before_noting(self, outcome: Untraceable, call: Call) -> Bypass:
        """A bypass that is noted only if the function itself can run the call.

        Otherwise one call with a wrong argument would keep all others from the cache, in each
        worker of the store.
        """
        # Prepared before the function runs, because the function may change its arguments.
        frame_locals = call.scope.frame_locals
        failed = Failed(outcome.reason, outcome.breaks)
        draft = self._draft_of(outcome, call)
        kind, conditions = call.signature.kind, conditions_in(draft)
        remember = self._untraced.later(kind, conditions, call.scope)
        pieces = self._pieces_for(failed)
        if pieces is None:
            self._count("bypasses", USUAL)

        def note_end(error: Exception | None) -> None:
            if error is not None:
                raised = f"the function itself raised {type(error).__name__} for such a call"
                self._untraced.note_error(call.signature, raised)
                self._end_in_bypass(raised)
                events.logger.info("%s: %s", self.title, raised)
                return
            remember(failed)
            with self.faults_logged():
                noted = failed._replace(note=self._note_bypass(draft))
                remember(noted)
                if pieces is not None:
                    self._tell_of_pieces(pieces, noted, frame_locals)
            if pieces is None:
                self._warn(outcome.reason)

        return Bypass(outcome.reason, note_end, None if pieces is None else pieces.run)

    def _run_in_pieces_or_eagerly(self, failed: Failed, frame_locals: Mapping[str, Any]) -> Bypass:
        """A call that can't be one graph: in pieces, if the user wants pieces, or a bypass."""
        pieces = self._pieces_for(failed)
        if pieces is None:
            return self._bypass(failed.reason)
        self._last = _IN_PIECES, failed.reason

        def note_end(_: Exception | None) -> None:
            with self.faults_logged():
                self._tell_of_pieces(pieces, failed, frame_locals)

        return Bypass(failed.reason, note_end, pieces.run)

    def _pieces_for(self, failed: Failed) -> FunctionPieces | None:
        if not failed.breaks or not self.recipe.breaks or compile_lock.obstacle():
            return None
        if self._pieces is None:
            from npugx_cache.pieces.of_function import FunctionPieces  # loads Dynamo

            self._pieces = FunctionPieces(self.recipe, self.settings, self.counters)
        return self._pieces

    def _tell_of_pieces(
        self, pieces: FunctionPieces, failed: Failed, frame_locals: Mapping[str, Any]
    ) -> None:
        self._last = _IN_PIECES, failed.reason
        clean = partial(without_texts, frame_locals=frame_locals)
        pieces.record_pieces(failed.reason, failed.note, self.open_store(), clean)

    def pieces_bound(self) -> int:
        """How many pieces are compiled in this process."""
        return 0 if self._pieces is None else self._pieces.count

    def explain_lookup(self) -> tuple[events.Refusal, ...]:
        """As for any client, and the pieces of a function that runs in pieces."""
        if self._last is None or self._last[0] != _IN_PIECES or self._pieces is None:
            return super().explain_lookup()
        return tuple(self._pieces.explain_pieces(self._last[1]))

    @contextlib.contextmanager
    def faults_logged(self, *, raises: bool = False) -> Iterator[None]:
        """Log a fault of ours in this block, which is beside a call; raise the fault if `raises`.

        What comes from outside is raised in any case.
        """
        try:
            yield
        except Exception as fault:
            if raises:
                raise
            let_through(fault)
            events.logger.exception("%s: a fault of the cache", self.title)

    def _draft_of(self, outcome: LocalOnly | Untraceable, call: Call) -> store.Draft:
        from npugx_cache.trace.outcomes import Untraceable

        conditions = outcome.conditions
        blobs = {} if conditions is None else {CONDITIONS: pack_conditions(conditions)}
        breaks = isinstance(outcome, Untraceable) and outcome.breaks
        return bypass_draft(self.recipe, call, outcome.reason, blobs, breaks=breaks)

    def _note_bypass(self, draft: store.Draft) -> str:
        """The entry of the note, or empty if it is not stored."""
        opened = self.open_store()
        return "" if opened is None else self._note(opened, draft)

    def _note(self, opened: store.Store, draft: store.Draft) -> str:
        found = opened.candidates(draft.key)
        noted = found.bypasses if draft.kind == "bypass" else found.set_ups
        # Without a limit, conditions that never hold again would add a note at every start.
        if sum(each.about.get("calls") == draft.about["calls"] for each in noted) < _MAX_NOTES:
            answer = opened.publish(draft)
            if isinstance(answer, store.Published):
                return answer.manifest.entry
        return ""

    def _bypass(self, reason: str, kind: str = "") -> Bypass:
        self.tell_of_bypass(reason, kind)
        return Bypass(reason)

    def tell_of_grad(self, frame_locals: Mapping[str, object]) -> None:
        """Say once that results carry no grad, where a model in training mode suggests it."""
        models = (each for each in frame_locals.values() if isinstance(each, torch.nn.Module))
        if _NO_GRAD not in self._warned and any(model.training for model in models):
            self._warned.add(_NO_GRAD)
            events.logger.info("%s: %s", self.title, _NO_GRAD)
