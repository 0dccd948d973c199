"""Restores what the store keeps for a call: binds an entry, or says why none fits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from npugx_cache import events, store
from npugx_cache.answer.failed_traces import Failed
from npugx_cache.answer.notes import OF_GRAPHS, is_about, set_up_due
from npugx_cache.answer.uncached_calls import UncachedCalls
from npugx_cache.conditions.check import Checker
from npugx_cache.entry import restore
from npugx_cache.entry.artifact import BINDINGS, CONDITIONS, CONSTANTS, LIBRARY, SET_UP
from npugx_cache.entry.restore import Specialisation
from npugx_cache.errors import CorruptEntry
from npugx_cache.interpreter.forks import survive_forks
from npugx_cache.portable import NotPortable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npugx_cache.answer.notes import Call
    from npugx_cache.answer.outcomes import Bypass
    from npugx_cache.backend.capture import Captures
    from npugx_cache.conditions.argument_facts import Index
    from npugx_cache.conditions.imports import Import
    from npugx_cache.conditions.set_up import SetUp
    from npugx_cache.config import Settings
    from npugx_cache.counters import Counters
    from npugx_cache.key.recipe import Recipe
    from npugx_cache.specialisations import Specialisations

LOOKED = ""  # in `Call.tried` once the store was asked: a later look must keep the first reasons

Answers = dict[str, Checker | events.Refusal]
"""What entries that did not fit a call answered: their conditions, or why they are of no use."""


class StoredGraphs(UncachedCalls):
    """The graphs and the notes that the store has for the calls of one function."""

    def __init__(
        self,
        recipe: Recipe,
        settings: Settings,
        counters: Counters,
        captures: Captures | None,
        bound: Specialisations,
    ) -> None:
        super().__init__(recipe, settings, counters, bound)
        self.captures = captures
        self._pinned: set[str] = set()
        """The entries that did not fit a call of this process, which `_stored` has."""
        self._stored: Index[str] | None = None
        self._restoring = threading.RLock()
        survive_forks(self, "_restoring")

    def _bind_first(
        self,
        opened: store.Store,
        candidates: store.Candidates,
        call: Call,
        answers: Answers,
        *,
        first: bool,
    ) -> Specialisation | Import | None:
        """Bind the first entry whose conditions hold. Skips entries that this call has tried.

        An import that comes before that is given back.
        """
        call.tried.add(LOOKED)
        new = [each for each in candidates.manifests if each.entry not in call.tried]
        new.sort(key=lambda m: m.about.get("signature_id") != call.signature.exact)
        refusals = [self._fault(opened, r.entry, r.reason) for r in candidates.refused]
        found = self._bind_first_likely(opened, new, call, answers)
        if found is not None:
            return found
        from npugx_cache.conditions import imports  # a first hit makes none

        refused = [each for each in answers.values() if isinstance(each, Checker)]
        if (import_due := imports.due(refused, call.scope)) is not None:
            return import_due
        for manifest in new:  # reasons come last, because a hit needs none
            answer = answers.get(manifest.entry) or self._try(opened, manifest, call)
            if isinstance(answer, Specialisation):
                return self._note_hit(opened, manifest, answer)
            if isinstance(answer, Checker):
                answer = self._explain(opened, manifest, answer, call)
            refusals.append(answer)
            call.tried.add(manifest.entry)
        if first or refusals:
            refusals.sort(key=lambda refusal: len(refusal.reasons))
            self.refusals = tuple(refusals)
        return None

    def _bind_first_likely(
        self,
        opened: store.Store,
        manifests: Iterable[store.Manifest],
        call: Call,
        answers: Answers,
    ) -> Specialisation | None:
        """Bind the first of these entries that fits, but for those that are known not to fit.

        `answers` has what entries answered to this call, and gets what others answer now.
        """
        unlikely: set[str] = set()
        if self._stored is not None:
            unlikely = self._pinned.difference(self._stored.select(call.scope.frame_locals))
        for manifest in manifests:
            entry = manifest.entry
            if entry not in answers and entry not in unlikely and entry not in call.tried:
                answer = self._try(opened, manifest, call)
                if isinstance(answer, Specialisation):
                    return self._note_hit(opened, manifest, answer)
                answers[entry] = answer
        return None

    def _note_hit(
        self, opened: store.Store, manifest: store.Manifest, found: Specialisation
    ) -> Specialisation:
        opened.record_hit(manifest)
        self._count("hits", seconds=manifest.cost_seconds)
        return found

    def _find_set_up(
        self, opened: store.Store, candidates: store.Candidates, call: Call
    ) -> SetUp | None:
        """What this call does to a model first, as an earlier process noted, if it is not done."""
        for manifest in candidates.set_ups:
            if not is_about(manifest, call) or manifest.entry in call.tried:
                continue
            call.tried.add(manifest.entry)
            blobs = opened.read(manifest, [CONDITIONS, SET_UP])
            if isinstance(blobs, store.Miss):
                self._fault(opened, manifest.entry, blobs.reason)
                continue
            try:
                due = set_up_due(blobs, call.scope)
            except CorruptEntry as error:
                opened.quarantine(manifest, str(error))
                self._fault(opened, manifest.entry, str(error))
                continue
            if due is not None:
                opened.record_hit(manifest)
                return due
        return None

    def _find_refusal(
        self,
        opened: store.Store,
        candidates: store.Candidates,
        call: Call,
        started: float,
    ) -> Bypass | None:
        """A bypass, if an earlier process noted one whose conditions still hold for this call."""
        for manifest in candidates.bypasses:
            if not is_about(manifest, call) or manifest.entry in call.tried:
                continue
            call.tried.add(manifest.entry)
            known = any(ref.name == CONDITIONS for ref in manifest.blobs)
            if not known:
                continue
            conditions = self._read_conditions(opened, manifest)
            if isinstance(conditions, events.Refusal):
                continue
            if not conditions.holds(call.scope):
                if not conditions.code_holds():
                    call.outdated.add(manifest.entry)
                continue
            reason = str(manifest.about.get("reason"))
            self._log("refused", started, f"entry {manifest.entry[:12]}")
            if kind := next((each for each in OF_GRAPHS if manifest.about.get(each)), ""):
                self._failed[call.signature.exact] = reason
                return self._bypass(reason, kind)
            breaks = manifest.about.get("breaks") is True
            failed = Failed(reason, breaks, manifest.entry)
            self._untraced.remember(call.signature.kind, failed, conditions, call.scope)
            runs = self._run_in_pieces_or_eagerly(failed, call.scope.frame_locals)
            if runs.instead is not None:
                opened.record_hit(manifest)  # the note saves a trace, so it is not evicted first
            return runs
        return None

    def _try(
        self, opened: store.Store, manifest: store.Manifest, call: Call
    ) -> Specialisation | Checker | events.Refusal:
        """An entry bound for a call; its conditions, if they don't hold; or why it is of no use."""
        candidate = self._read_conditions(opened, manifest)
        if isinstance(candidate, events.Refusal):
            return candidate
        if not candidate.holds(call.scope):
            self._note_pinned(manifest.entry, candidate)
            return candidate
        present = {ref.name for ref in manifest.blobs}
        parts = opened.read(manifest, present & {BINDINGS, CONSTANTS, LIBRARY})
        if isinstance(parts, store.Miss):
            return self._fault(opened, manifest.entry, parts.reason)
        try:
            return self._bind(candidate, parts, call, manifest.entry)
        except (CorruptEntry, NotPortable) as error:
            return self._set_aside(opened, manifest, error)

    def _read_conditions(
        self, opened: store.Store, manifest: store.Manifest
    ) -> Checker | events.Refusal:
        """The conditions of an entry, or why it is of no use."""
        blobs = opened.read(manifest, [CONDITIONS])
        if isinstance(blobs, store.Miss):
            return self._fault(opened, manifest.entry, blobs.reason)
        try:
            return restore.candidate(blobs)
        except (CorruptEntry, NotPortable) as error:
            return self._set_aside(opened, manifest, error)

    def _bind(
        self,
        candidate: Checker,
        blobs: Mapping[str, bytes],
        call: Call,
        entry: str | None,
        *,
        captured: bool = True,
    ) -> Specialisation:
        return restore.bind(
            blobs,
            self.recipe.function,
            entry=entry,
            conditions=restore.repeated_check(candidate, call.scope, self.recipe.guards),
            switches=call.scope.switches,
            captures=self.captures if captured else None,
            demanded=candidate.conditions,
        )

    def _explain(
        self, opened: store.Store, manifest: store.Manifest, refused: Checker, call: Call
    ) -> events.Refusal:
        """Why the conditions of a stored graph don't hold for a call."""
        try:
            if refused.is_of_another_rank(call.scope):
                call.of_other_ranks.add(manifest.entry)
            code = self.recipe.function.__code__
            kind, reasons = restore.refusal(refused, call.scope, code)
        except (CorruptEntry, NotPortable) as error:
            return self._set_aside(opened, manifest, error)
        if not self.recipe.dynamic:
            from npugx_cache.conditions import causes  # a first hit needs no reasons

            reasons = causes.with_advice(reasons)
        return events.Refusal(entry=manifest.entry, reasons=reasons, kind=kind)

    def _set_aside(
        self, opened: store.Store, manifest: store.Manifest, error: CorruptEntry | NotPortable
    ) -> events.Refusal:
        if isinstance(error, NotPortable):
            return events.Refusal(entry=manifest.entry, reasons=(str(error),), kind="code")
        opened.quarantine(manifest, str(error))
        return self._fault(opened, manifest.entry, str(error))

    def _note_pinned(self, entry: str, refused: Checker) -> None:
        """Note which calls an entry may fit, so that later hits need not read its conditions."""
        demanded = refused.pinned_facts()
        with self._restoring:
            if self._stored is None:
                from npugx_cache.conditions.argument_facts import Index  # a first hit needs none

                self._stored = Index()
            if entry not in self._pinned:
                self._stored.add(entry, demanded)
                self._pinned.add(entry)
