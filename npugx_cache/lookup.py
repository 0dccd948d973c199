"""Answers a call that no graph of this process accepts: restores an entry, or compiles one."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache import events, store
from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.kinds import live_state
from npugx_cache.entry import restore
from npugx_cache.entry.artifact import (
    BINDINGS,
    CONDITIONS,
    CONSTANTS,
    LIBRARY,
    READABLE,
    SET_UP,
    pack_conditions,
    set_up_blobs,
    set_up_of,
)
from npugx_cache.entry.restore import Specialisation
from npugx_cache.errors import (
    BackendUnavailable,
    CacheMiss,
    CorruptEntry,
    OptionError,
    PassError,
    VerificationError,
)
from npugx_cache.failed_traces import Failed, Untraced
from npugx_cache.forks import NamedLocks, survive_forks
from npugx_cache.interruptions import let_through
from npugx_cache.key import environment
from npugx_cache.key.fingerprint import Fingerprint
from npugx_cache.key.signature import (
    Signature,
    kinds_of_arguments,
    read_arguments,
    without_texts,
)
from npugx_cache.passing import is_passing
from npugx_cache.portable import NotPortable, digest
from npugx_cache.private import compile_lock, eager_run
from npugx_cache.records import dataclass, field
from npugx_cache.store_client import USUAL, StoreClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from npugx_cache.backend.capture import Captures
    from npugx_cache.compile import Compiled
    from npugx_cache.conditions import Conditions
    from npugx_cache.conditions.argument_facts import Index
    from npugx_cache.conditions.evaluate import Scope
    from npugx_cache.conditions.imports import Import
    from npugx_cache.conditions.set_up import SetUp
    from npugx_cache.config import Settings
    from npugx_cache.counters import Counters
    from npugx_cache.entry import first_result
    from npugx_cache.entry.failed_run import Failure
    from npugx_cache.entry.size_history import Known
    from npugx_cache.key.recipe import Recipe
    from npugx_cache.pieces.of_function import FunctionPieces
    from npugx_cache.progress import Progress
    from npugx_cache.recompiles import Recompiles
    from npugx_cache.specialisations import Specialisations
    from npugx_cache.trace.outcomes import LocalOnly, SetUpFirst, Untraceable

    First = SetUp | Import  # what a call does before it comes to a graph

_MAX_NOTES = 8
_MAX_SET_UPS = 64
_ANY_CALL = "any"  # in a note about a function: no types of arguments read like this
_IN_PIECES = "pieces"  # the outcome of a lookup whose call runs in pieces
_LOOKED = ""  # in `Call.tried` once the store was asked: a later look must keep the first reasons
_OTHER_SIZES = "the graph holds for other sizes than the data of this call give: "
_DIFFERS = (
    "the first result of its compiled graph is not the function's own (`npugx-cache triage` finds "
    "the part at fault, NPUGX_CACHE_VERIFY=off compares nothing); what differs: "
)
_OF_GRAPHS = _OF_RUN, _OF_RESULT = "failed_run", "differs"  # kinds of bypasses about one graph
_NO_GRAD = (
    "called with grad on and with a model in training mode, but results of cached calls carry no "
    "grad; call .eval() for inference, or the function itself for training"
)
_ON_MISS = (
    "no stored graph accepts this call, and NPUGX_CACHE_ON_MISS=eager forbids a compile; "
    ".explain() and `npugx-cache misses` say why"
)
# Raised also without `strict`: what the user asked for can't be had, or the user's own pass failed.
_ASKED_FOR = (BackendUnavailable, CacheMiss, OptionError, PassError, VerificationError)


Answers = dict[str, Checker | events.Refusal]
"""What entries that did not fit a call answered: their conditions, or why they are of no use."""


@dataclass(frozen=True, slots=True)
class Bypass:
    """The call runs eagerly, or `instead` runs it: its pieces, or what has run already.

    `ended`, if it is given, must be called when the function has run, with what it raised or None.
    """

    reason: str
    ended: Callable[[Exception | None], None] | None = None
    instead: Callable[..., Any] | None = None

    def runs(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What runs the call in the place of a graph."""
        ended, runs = self.ended, self.instead or function
        if ended is None:
            return runs

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                result = runs(*args, **kwargs)
            except Exception as error:
                ended(error)
                raise
            ended(None)
            return result

        return run


@dataclass(frozen=True, slots=True)
class Ran:
    """A new graph that has run the call already, to be compared, and its result.

    Like a `Bypass`, it says what runs the call: nothing runs any more.
    """

    graph: Specialisation
    result: Any

    def runs(self, _: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *_, **__: self.result


class Lookup(StoreClient):
    """Answers the calls of one function from one store, and binds what it finds or compiles.

    Safe to use from several threads. A call whose entry is stored waits for no compile and for no
    lock of another worker; it waits only while another thread restores an entry, which is short.
    """

    def __init__(
        self,
        recipe: Recipe,
        settings: Settings,
        counters: Counters,
        captures: Captures | None,
        bound: Specialisations,
    ) -> None:
        super().__init__(recipe.title, recipe.backend, settings, counters)
        self.recipe = recipe
        self.captures = captures
        self.bound = bound
        self._untraced = Untraced()
        self._failed: dict[str, str] = {}
        """Why the graph of a call was withdrawn, by `Signature.exact`."""
        self._recompiles: Recompiles | None = None
        self._pieces: FunctionPieces | None = None
        """What runs the calls that can't be one graph, if the user wants pieces."""
        self._beyond: dict[str, str] = {}
        """Why calls that no entry accepts are not compiled, by `Signature.exact`."""
        self._pinned: set[str] = set()
        """The entries that did not fit a call of this process, which `_stored` has."""
        self._stored: Index[str] | None = None
        self._restoring = threading.RLock()
        self._compiling = NamedLocks()
        survive_forks(self, "_restoring")

    def answer(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], scope: Scope, *, warming: bool = False
    ) -> Specialisation | Ran | Bypass:
        """The graph for a call, or a bypass with its reason.

        Raises only under `strict`, and errors that the user caused. `warming`: `.warm()` asks ahead
        of a call, so a compile is no sign that something keeps changing and is not counted.
        """
        if eager_run.is_wanted_here():
            return Bypass("the function that calls this one runs by itself, for a comparison")
        started = time.perf_counter()
        for _ in range(_MAX_SET_UPS):
            answer = self._caught(args, kwargs, scope, started, warming=warming)
            if isinstance(answer, (Specialisation, Ran, Bypass)):
                return answer
            # No lock of ours is held, and what the library raises is what eager would raise.
            answer.perform()
        return self._bypass("the models in this call have to be set up again and again")

    def _caught(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        scope: Scope,
        started: float,
        *,
        warming: bool,
    ) -> Specialisation | Ran | Bypass | First:
        try:
            return self._answer(args, kwargs, scope, started, warming=warming)
        except Exception as error:
            if self.settings.strict or isinstance(error, _ASKED_FOR):
                raise
            let_through(error)
            # The one boundary of P2: a fault of ours must not become a fault of the worker.
            told = f"{self.title}: a fault of the cache; running eagerly"
            if is_passing(error):  # each call may meet it, and a traceback says nothing of a cause
                events.warn_once(f"{told}: {error}")
            else:
                events.logger.exception("%s", told)
            self._count("bypasses", "fault")
            # Without the message, which may quote an argument: the journal keeps the reason.
            reason = f"a fault of the cache: {type(error).__name__}, see the log"
            if not is_passing(error):  # or each call would be traced again, to the same end
                with contextlib.suppress(Exception):
                    self._untraced.raised(Signature(scope.frame_locals), reason)
            self._end_in_bypass(reason)
            return Bypass(f"a fault of the cache: {error!r}")

    def _answer(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        scope: Scope,
        started: float,
        *,
        warming: bool,
    ) -> Specialisation | Ran | Bypass | First:
        shape = Signature(scope.frame_locals)
        failed = self._untraced.known(shape, scope)
        breaks = failed is not None and failed.breaks and self.recipe.breaks
        reason, kind = None if failed is None or breaks else failed.reason, ""
        if reason is None and self._beyond and not warming:
            reason = self._beyond.get(shape.exact)
        if reason is None and self._failed:
            reason = self._failed.get(shape.exact)
        if reason is None:  # last, because torch's whole state is read for it
            reason = environment.unsupported(untested_torch=self.settings.untested_torch)
            kind = "unsupported"
        if reason is not None:
            self.refusals = ()  # those of an earlier lookup are about another call
            return self._bypass(reason, kind)
        if failed is not None:
            return self._broken(failed, scope.frame_locals)
        if "einops" in sys.modules:
            from npugx_cache.conditions import pure_helpers

            pure_helpers.start_libraries()
        call = self._call(args, kwargs, scope, shape)
        found = self._found(call, started, "hit")
        if found is None:
            found = self._fetched(call, started)
        return self._compiled_once(call, started, warming=warming) if found is None else found

    def call_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], scope: Scope) -> Call:
        return self._call(args, kwargs, scope, Signature(scope.frame_locals))

    def _call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], scope: Scope, shape: Signature
    ) -> Call:
        live = environment.factors(shape.device_types, scope.switches)
        return Call(args, kwargs, scope, shape, Fingerprint.of((*self.recipe.factors(), *live)))

    def withdraw(self, failure: Failure, call: Call) -> None:
        """Give up a graph that raised at a call that the function itself can run.

        The entry goes to quarantine, and the store notes the refusal under the entry's conditions,
        because each other worker would meet the same failure. A graph that the data of this call do
        not fit stays, because it is right for others.
        """
        if failure.by_data:
            text = without_texts(_OTHER_SIZES + failure.text, call.scope.frame_locals)
            self._bypass(text, _OF_RUN)
            return
        graph = failure.graph
        reason = f"its compiled graph failed where the function itself does not: {failure.text}"
        reason = without_texts(reason, call.scope.frame_locals)
        self.bound.remove(graph)
        self._failed[call.signature.exact] = reason
        self._bypass(reason, _OF_RUN)
        opened = self.opened()
        if opened is None or graph.entry is None:
            return
        for manifest in opened.candidates(call.fingerprint.key).manifests:
            if manifest.entry == graph.entry:
                conditions = opened.read(manifest, [CONDITIONS])
                if isinstance(conditions, dict):
                    draft = bypass_draft(self.recipe, call, reason, conditions, of_graph=_OF_RUN)
                    opened.publish(draft)
                opened.quarantine(manifest, reason)

    # --- restore

    def _found(
        self, call: Call, started: float, outcome: str
    ) -> Specialisation | Bypass | First | None:
        """The store's answer to a call: a graph, now bound, or a note. None if it has neither."""
        with self._restoring:
            known = self.bound.find(call.scope)  # another thread may have bound it meanwhile
            if known is not None:
                return known
            opened = self.opened()
            if opened is None:
                return None
            key, answers = call.fingerprint.key, Answers()
            likely = opened.likely(key, call.signature.exact)
            found = self._first_to_fit(opened, likely, call, answers)
            if found is None:
                candidates = opened.candidates(key)
                # First: what a model is without it is no reason why an entry does not fit.
                if (due := self._set_up(opened, candidates, call)) is not None:
                    return due
                first = _LOOKED not in call.tried
                restored = self._restored(opened, candidates, call, answers, first=first)
                if restored is not None and not isinstance(restored, Specialisation):
                    return restored
                found = restored
            if found is not None and self.settings.verify != "recompile":
                self.bound.add([found])
        if found is None:
            refused = self._refused(opened, candidates, call, started)
            if refused is None and first and not self.refusals:
                from npugx_cache import location

                place = location.of_code(self.recipe.function.__code__)
                factors = call.fingerprint.factors
                siblings = self._from_siblings(opened, self.recipe.identity, factors, place)
                self.refusals = tuple(siblings)
            return refused
        self._tell_of_hit(outcome, found.entry or "", started)
        if self.settings.verify == "recompile":
            from npugx_cache import garbage

            with garbage.freed():
                found = self._rechecked(found, call)
            self.bound.add([found])
        return found

    def _fetched(self, call: Call, started: float) -> Specialisation | Bypass | First | None:
        """The answer of the remote tier to a call, if the store has one and it brings new entries.

        Asked without a lock, because other calls must not wait for the tier.
        """
        key, signature = call.fingerprint.key, call.signature.exact
        if not self._remote_brings(self.opened(), key, signature):
            return None
        return self._found(call, started, "hit, fetched from the remote tier")

    def _restored(
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
        call.tried.add(_LOOKED)
        new = [each for each in candidates.manifests if each.entry not in call.tried]
        new.sort(key=lambda m: m.about.get("signature_id") != call.signature.exact)
        refusals = [self._fault(opened, r.entry, r.reason) for r in candidates.refused]
        found = self._first_to_fit(opened, new, call, answers)
        if found is not None:
            return found
        from npugx_cache.conditions import imports  # a first hit makes none

        refused = [each for each in answers.values() if isinstance(each, Checker)]
        if (import_due := imports.due(refused, call.scope)) is not None:
            return import_due
        for manifest in new:  # reasons come last, because a hit needs none
            answer = answers.get(manifest.entry) or self._try(opened, manifest, call)
            if isinstance(answer, Specialisation):
                return self._hit(opened, manifest, answer)
            if isinstance(answer, Checker):
                answer = self._why(opened, manifest, answer, call)
            refusals.append(answer)
            call.tried.add(manifest.entry)
        if first or refusals:
            refusals.sort(key=lambda refusal: len(refusal.reasons))
            self.refusals = tuple(refusals)
        return None

    def _first_to_fit(
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
                    return self._hit(opened, manifest, answer)
                answers[entry] = answer
        return None

    def _hit(
        self, opened: store.Store, manifest: store.Manifest, found: Specialisation
    ) -> Specialisation:
        opened.record_hit(manifest)
        self._count("hits", seconds=manifest.cost_seconds)
        return found

    def _set_up(
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
                due = _due(blobs, call.scope)
            except CorruptEntry as error:
                opened.quarantine(manifest, str(error))
                self._fault(opened, manifest.entry, str(error))
                continue
            if due is not None:
                opened.record_hit(manifest)
                return due
        return None

    def _refused(
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
            conditions = self._conditions(opened, manifest)
            if isinstance(conditions, events.Refusal):
                continue
            if not conditions.holds(call.scope):
                if not conditions.code_holds():
                    call.outdated.add(manifest.entry)
                continue
            reason = str(manifest.about.get("reason"))
            self._log("refused", started, f"entry {manifest.entry[:12]}")
            if kind := next((each for each in _OF_GRAPHS if manifest.about.get(each)), ""):
                self._failed[call.signature.exact] = reason
                return self._bypass(reason, kind)
            breaks = manifest.about.get("breaks") is True
            failed = Failed(reason, breaks, manifest.entry)
            self._untraced.remember(call.signature.kind, failed, conditions, call.scope)
            runs = self._broken(failed, call.scope.frame_locals)
            if runs.instead is not None:
                opened.record_hit(manifest)  # the note saves a trace, so it is not evicted first
            return runs
        return None

    def _try(
        self, opened: store.Store, manifest: store.Manifest, call: Call
    ) -> Specialisation | Checker | events.Refusal:
        """An entry bound for a call; its conditions, if they don't hold; or why it is of no use."""
        candidate = self._conditions(opened, manifest)
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
            return self._of_no_use(opened, manifest, error)

    def _conditions(
        self, opened: store.Store, manifest: store.Manifest
    ) -> Checker | events.Refusal:
        """The conditions of an entry, or why it is of no use."""
        blobs = opened.read(manifest, [CONDITIONS])
        if isinstance(blobs, store.Miss):
            return self._fault(opened, manifest.entry, blobs.reason)
        try:
            return restore.candidate(blobs)
        except (CorruptEntry, NotPortable) as error:
            return self._of_no_use(opened, manifest, error)

    def _why(
        self, opened: store.Store, manifest: store.Manifest, refused: Checker, call: Call
    ) -> events.Refusal:
        """Why the conditions of a stored graph don't hold for a call."""
        try:
            if refused.is_of_another_rank(call.scope):
                call.of_other_ranks.add(manifest.entry)
            code = self.recipe.function.__code__
            kind, reasons = restore.refusal(refused, call.scope, code)
        except (CorruptEntry, NotPortable) as error:
            return self._of_no_use(opened, manifest, error)
        if not self.recipe.dynamic:
            from npugx_cache.conditions import causes  # a first hit needs no reasons

            reasons = causes.with_advice(reasons)
        return events.Refusal(entry=manifest.entry, reasons=reasons, kind=kind)

    def _of_no_use(
        self, opened: store.Store, manifest: store.Manifest, error: CorruptEntry | NotPortable
    ) -> events.Refusal:
        if isinstance(error, NotPortable):
            return events.Refusal(entry=manifest.entry, reasons=(str(error),), kind="code")
        opened.quarantine(manifest, str(error))
        return self._fault(opened, manifest.entry, str(error))

    def _note_pinned(self, entry: str, refused: Checker) -> None:
        """Note which calls an entry may fit, so that later hits need not read its conditions."""
        demanded = refused.pinned()
        with self._restoring:
            if self._stored is None:
                from npugx_cache.conditions.argument_facts import Index  # a first hit needs none

                self._stored = Index()
            if entry not in self._pinned:
                self._stored.add(entry, demanded)
                self._pinned.add(entry)

    # --- compile

    def _compiled_once(
        self, call: Call, started: float, *, warming: bool
    ) -> Specialisation | Ran | Bypass | First:
        """Compile, or use the graph that another thread or worker compiles at the same time."""
        if reason := compile_lock.obstacle():
            return self._bypass(reason, "busy")
        if self.settings.on_miss == "raise":
            raise self._missed()
        if self.settings.on_miss == "eager":
            return self._bypass(_ON_MISS, "on_miss")  # the next call looks again
        if not warming and (reason := self._excess(call)):
            self._beyond[call.signature.exact] = reason
            return self._bypass(reason, "recompile_limit")
        shape = call.signature.kind if self.recipe.dynamic else call.signature.exact
        name = digest([call.fingerprint.key, shape])
        with self._compiling.hold(name):
            if known := self.bound.find(call.scope):
                return known
            if failed := self._untraced.known(call.signature, call.scope):
                return self._broken(failed, call.scope.frame_locals)
            found = self._compiled_under_lock(name, call, started, warming=warming)
            graph = found.graph if isinstance(found, Ran) else found
            if isinstance(graph, Specialisation):
                self.bound.add([graph])
            return found

    def _compiled_under_lock(
        self, name: str, call: Call, started: float, *, warming: bool
    ) -> Specialisation | Ran | Bypass | First:
        opened = self.opened()
        if opened is None:
            return self._compiled(call, None, started, warming=warming)
        answers: list[Specialisation | Bypass | First] = []

        def answered() -> bool:  # an entry that appears may be for other values, so it is tried
            if not answers:
                answer = self._found(call, started, "hit after waiting")
                answers.extend([answer] if answer is not None else [])
            return bool(answers)

        def refused() -> bool:
            """Whether another worker noted meanwhile that such calls can't be stored.

            Otherwise ranks would wait for each other and compile one after the other for nothing.
            """
            listed = opened.candidates(call.fingerprint.key).bypasses
            return any(is_about(m, call) and m.entry not in call.outdated for m in listed)

        if refused():
            return self._compiled(call, opened, started, warming=warming)
        with self._locked(opened, name, call, lambda: answered() or refused()):
            if answered():
                return answers[0]
            return self._compiled(call, opened, started, warming=warming)

    @contextlib.contextmanager
    def _locked(
        self, opened: store.Store, name: str, call: Call, done: Callable[[], bool]
    ) -> Iterator[None]:
        """Hold the lock for the graph of a call, waiting for others until `done()`.

        Once it is known that the graph depends on the rank, only processes of this rank share the
        lock. Otherwise ranks would wait for graphs that only other ranks can use.
        """
        from npugx_cache.conditions import process  # a restored call needs neither
        from npugx_cache.private import process_groups

        wait, timeout = self.settings.lock_wait, process_groups.shortest_timeout()
        if not call.of_other_ranks:
            known = lambda: done() or bool(call.of_other_ranks)  # noqa: E731
            with opened.lock(name, wait=wait, needed_within=timeout, done=known) as shared:
                if done() or not call.of_other_ranks:
                    yield
                    return
            timeout = None if timeout is None else timeout - 2 * shared.waited
        name = digest([name, str(process.answer("get_rank"))])
        with opened.lock(name, wait=wait, needed_within=timeout, done=done):
            yield

    def _compiled(
        self, call: Call, opened: store.Store | None, started: float, *, warming: bool
    ) -> Specialisation | Ran | Bypass | First:
        from npugx_cache import garbage, progress, why_compiled  # a restored call needs none

        known = [each.entry for each in self.bound]
        why_compiled.tell_torch(self.recipe, known, self.refusals)
        if events.logger.isEnabledFor(logging.INFO):
            last = why_compiled.last_cost(self.recipe, self.settings, opened)
            why = self.refusals[0].reasons if self.refusals else (self._no_entry(),)
            why_compiled.tell(self.title, why, last)
        with garbage.freed(), progress.Progress(self.title) as told:
            return self._compiled_and_stored(call, opened, started, told, warming=warming)

    def _compiled_and_stored(
        self,
        call: Call,
        opened: store.Store | None,
        started: float,
        progress: Progress,
        *,
        warming: bool,
    ) -> Specialisation | Ran | Bypass | First:
        progress.begin("loading torch's compiler")
        from npugx_cache.compile import Compiled
        from npugx_cache.entry import size_history
        from npugx_cache.trace.outcomes import SetUpFirst

        nearest = self.refusals[0] if self.refusals else None
        asked = opened if self.recipe.dynamic is None else None
        known = size_history.seen(asked, call.fingerprint.key, call.scope)
        outcome = self._compile(call, known, progress)
        if isinstance(outcome, SetUpFirst):
            if outcome.stored is not None and opened is not None:
                self._note(opened, set_up_draft(self.recipe, call, outcome, *outcome.stored))
            return outcome.set_up
        says_something = getattr(outcome, "lasting", True) and not getattr(outcome, "raised", False)
        if not warming and says_something:
            self._counted().note(call.signature.leaves, nearest)
        if not isinstance(outcome, Compiled):
            return self._uncacheable(outcome, call, warming=warming)
        blobs = outcome.artifact.to_blobs()
        progress.begin("binding")
        try:
            bound = self._bound(blobs, call)
        except (NotPortable, CorruptEntry) as error:
            return self._uncacheable(outcome.local_only(error), call, warming=warming)
        alike: first_result.Alike | None = None
        if self.settings.verify != "off":
            progress.begin("comparing the first result")
            compared = self._first_result(outcome, blobs, bound, call)
            if isinstance(compared, Bypass):
                return compared
            alike = compared if bound.is_direct and not warming else None
        self._count("misses", self._kind_of_miss(), outcome.seconds)
        progress.begin("publishing")
        draft = graph_draft(self.recipe, call, outcome, blobs)
        published = self._publish(opened, draft) if opened else None
        entry = published.manifest.entry if isinstance(published, store.Published) else None
        progress.end()
        self._tell_of_miss(published, nearest, started, outcome.seconds, progress.phases)
        graph = dataclasses.replace(bound, entry=entry)
        return graph if alike is None else Ran(graph, alike.result)

    def _counted(self) -> Recompiles:
        if self._recompiles is None:
            from npugx_cache.recompiles import Recompiles  # a restored call needs none

            self._recompiles = Recompiles(self.settings.recompile_limit)
        return self._recompiles

    def _excess(self, call: Call) -> str | None:
        """Why calls may cause no more compiles, or None; the first process to say so notes it."""
        counted, opened = self._counted(), self.opened()
        if opened is None:
            return counted.excess(lambda: None)
        limit = self.settings.recompile_limit

        def noted() -> str | None:
            listed = opened.candidates(call.fingerprint.key).bypasses
            return next((said for note in listed if (said := limit_in(note, limit))), None)

        reason = counted.excess(noted)
        if reason is not None and counted.reached and noted() is None:
            self._note(opened, limit_draft(self.recipe, call, reason, limit))
        return reason

    def count_with(self, other: Lookup) -> None:
        """Count compiles together with another lookup, under one recompile limit."""
        self._recompiles = other._counted()

    def _rechecked(self, found: Specialisation, call: Call) -> Specialisation:
        """Compile a hit again and compare: `verify="recompile"`. Raises `VerificationError`."""
        from npugx_cache.compile import Compiled
        from npugx_cache.entry import recheck, size_history
        from npugx_cache.progress import Progress

        title, opened = self.title, self.opened()
        known = size_history.before(opened, call.fingerprint.key, found.entry)
        with Progress(title) as progress:
            outcome = self._compile(call, known, progress)
        if not isinstance(outcome, Compiled):
            raise VerificationError(title, f"now it can't be stored: {outcome.reason}", None, None)
        for manifest in opened.candidates(call.fingerprint.key).manifests if opened else ():
            stored = opened.read(manifest, [READABLE]) if opened else None
            if manifest.entry == found.entry and isinstance(stored, dict):
                text = stored[READABLE].decode()
                recheck.compare_artifacts(title, text, outcome.artifact.readable)
        fresh = self._bound(outcome.artifact.to_blobs(), call)
        if outcome.unrepeatable:
            events.logger.warning("%s: results not compared: %s", title, outcome.unrepeatable)
            return found
        return recheck.comparing_results(title, found, fresh.run)

    def _compile(
        self, call: Call, known: Known, progress: Progress
    ) -> Compiled | LocalOnly | Untraceable | SetUpFirst:
        from npugx_cache.compile import compile_call

        factors, args, kwargs = call.fingerprint.factors, call.args, call.kwargs
        return compile_call(
            self.recipe, args, kwargs, call.scope, live_state(), factors, known, progress
        )

    def _bound(self, blobs: dict[str, bytes], call: Call) -> Specialisation:
        """Bind the packed bytes as a restart will (P7), before they are published.

        Raises if the bytes can't be bound or refuse the call that they were made for. Such bytes
        are never published.
        """
        candidate = restore.candidate(blobs)
        if not candidate.holds(call.scope):
            failures = restore.failures(candidate, call.scope, self.recipe.function.__code__)
            raise NotPortable(f"the entry refuses its own call: {failures}")
        return self._bind(candidate, blobs, call, None)

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
            conditions=restore.repeated(candidate, call.scope, self.recipe.guards),
            switches=call.scope.switches,
            captures=self.captures if captured else None,
            device=candidate.conditions.device,
        )

    def _first_result(
        self, outcome: Compiled, blobs: dict[str, bytes], graph: Specialisation, call: Call
    ) -> first_result.Alike | Bypass | None:
        """The first result of a new graph, or a bypass if the function itself gives another one.

        None: the two were not compared.
        """
        from npugx_cache.entry import first_result

        answer: first_result.Difference | first_result.Uncompared | first_result.Alike
        if outcome.unrepeatable:
            answer = first_result.Uncompared(outcome.unrepeatable)
        else:
            if not graph.is_direct:  # of a captured graph, memory would stay behind
                graph = self._bind(restore.candidate(blobs), blobs, call, None, captured=False)
            held, function = len(blobs.get(CONSTANTS, b"")), self.recipe.function
            answer = first_result.compare(
                function, graph.run, outcome.rounding, call.args, call.kwargs, held
            )
        if isinstance(answer, first_result.Uncompared):
            events.logger.debug("%s: first result not compared: %s", self.title, answer.reason)
            return None
        if isinstance(answer, first_result.Alike):
            return answer
        reason = without_texts(_DIFFERS + answer.text, call.scope.frame_locals)
        self._failed[call.signature.exact] = reason
        conditions = {CONDITIONS: blobs[CONDITIONS]}
        draft = bypass_draft(self.recipe, call, reason, conditions, of_graph=_OF_RESULT)
        with self.faults_logged():  # the function has run, and must not run again
            self._note_bypass(draft)
        self._bypass(reason, _OF_RESULT)
        expected = answer.expected
        return Bypass(reason, instead=lambda *_, **__: expected)

    def _uncacheable(
        self, outcome: LocalOnly | Untraceable, call: Call, *, warming: bool
    ) -> Specialisation | Bypass:
        from npugx_cache.trace.outcomes import LocalOnly

        if isinstance(outcome, LocalOnly):
            self._note_bypass(self._bypass_draft(outcome, call))
            self._warn(outcome.reason)
            self._count("bypasses", USUAL)
            code = self.recipe.function.__code__
            return Specialisation(None, outcome, outcome.run, call.scope.switches, code)
        if outcome.lasting and outcome.raised:
            in_pieces = outcome.breaks and self.recipe.breaks
            # Whether the function itself raises, too.
            unknown = warming or (self.settings.strict and not in_pieces)
            return self._bypass(outcome.reason) if unknown else self._unsure(outcome, call)
        if outcome.lasting:
            draft = self._bypass_draft(outcome, call)
            failed = Failed(outcome.reason, outcome.breaks, self._note_bypass(draft))
            kind, conditions = call.signature.kind, _conditions_in(draft)
            self._untraced.remember(kind, failed, conditions, call.scope)
            return self._broken(failed, call.scope.frame_locals)
        # The reason is not in the function, so it is no error under `strict` either.
        self._count("bypasses", "busy")
        self._end_in_bypass(outcome.reason)
        events.logger.info("%s runs uncached once: %s", self.title, outcome.reason)
        return Bypass(outcome.reason)

    def _unsure(self, outcome: Untraceable, call: Call) -> Bypass:
        """A bypass that is noted only if the function itself can run the call.

        Otherwise one call with a wrong argument would keep all others from the cache, in each
        worker of the store.
        """
        # Prepared before the function runs, because the function may change its arguments.
        frame_locals = call.scope.frame_locals
        failed = Failed(outcome.reason, outcome.breaks)
        draft = self._bypass_draft(outcome, call)
        kind, conditions = call.signature.kind, _conditions_in(draft)
        remember = self._untraced.later(kind, conditions, call.scope)
        pieces = self._pieces_for(failed)
        if pieces is None:
            self._count("bypasses", USUAL)

        def ended(error: Exception | None) -> None:
            if error is not None:
                raised = f"the function itself raised {type(error).__name__} for such a call"
                self._untraced.raised(call.signature, raised)
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

        return Bypass(outcome.reason, ended, None if pieces is None else pieces.run)

    def _broken(self, failed: Failed, frame_locals: Mapping[str, Any]) -> Bypass:
        """A call that can't be one graph: in pieces, if the user wants pieces, or a bypass."""
        pieces = self._pieces_for(failed)
        if pieces is None:
            return self._bypass(failed.reason)
        self._last = _IN_PIECES, failed.reason

        def ended(_: Exception | None) -> None:
            with self.faults_logged():
                self._tell_of_pieces(pieces, failed, frame_locals)

        return Bypass(failed.reason, ended, pieces.run)

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
        pieces.ended(failed.reason, failed.note, self.opened(), clean)

    def pieces_bound(self) -> int:
        """How many pieces are compiled in this process."""
        return 0 if self._pieces is None else self._pieces.count

    def explained(self) -> tuple[events.Refusal, ...]:
        """As for any client, and the pieces of a function that runs in pieces."""
        if self._last is None or self._last[0] != _IN_PIECES or self._pieces is None:
            return super().explained()
        return tuple(self._pieces.explained(self._last[1]))

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

    def _bypass_draft(self, outcome: LocalOnly | Untraceable, call: Call) -> store.Draft:
        from npugx_cache.trace.outcomes import Untraceable

        conditions = outcome.conditions
        blobs = {} if conditions is None else {CONDITIONS: pack_conditions(conditions)}
        breaks = isinstance(outcome, Untraceable) and outcome.breaks
        return bypass_draft(self.recipe, call, outcome.reason, blobs, breaks=breaks)

    def _note_bypass(self, draft: store.Draft) -> str:
        """The entry of the note, or empty if it is not stored."""
        opened = self.opened()
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
        self.bypassed(reason, kind)
        return Bypass(reason)

    def tell_of_grad(self, frame_locals: Mapping[str, object]) -> None:
        """Say once that results carry no grad, where a model in training mode suggests it."""
        models = (each for each in frame_locals.values() if isinstance(each, torch.nn.Module))
        if _NO_GRAD not in self._warned and any(model.training for model in models):
            self._warned.add(_NO_GRAD)
            events.logger.info("%s: %s", self.title, _NO_GRAD)


# One call that needs an answer, and the manifests that are published about it.


@dataclass(frozen=True, slots=True)
class Call:
    """One call that needs an answer. `args` include the object that a method is bound to.

    `tried` are the entries whose conditions don't hold for this call. `outdated` are those of them
    that were made from other code than the code that is loaded now, and `of_other_ranks` those that
    don't hold for one reason alone: this process has another rank.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    scope: Scope
    signature: Signature
    fingerprint: Fingerprint
    tried: set[str] = field(default_factory=set)
    outdated: set[str] = field(default_factory=set)
    of_other_ranks: set[str] = field(default_factory=set)


def _about(recipe: Recipe, call: Call, arguments: str) -> dict[str, Any]:
    return {
        "function": recipe.title,
        "backend": recipe.backend,
        "signature": arguments,
        "signature_id": call.signature.exact,
        "environment": environment.summary(),
    }


def graph_draft(
    recipe: Recipe, call: Call, outcome: Compiled, blobs: dict[str, bytes]
) -> store.Draft:
    arguments = read_arguments(call.scope.frame_locals, outcome.artifact.conditions)
    return store.Draft(
        key=call.fingerprint.key,
        identity=recipe.identity,
        kind="graph",
        cost_seconds=outcome.seconds,
        factors=call.fingerprint.factors,
        about=_about(recipe, call, arguments),
        blobs=blobs,
    )


def bypass_draft(
    recipe: Recipe,
    call: Call,
    reason: str,
    conditions: dict[str, bytes],
    *,
    of_graph: str = "",
    breaks: bool = False,
) -> store.Draft:
    """A note that such calls can't be cached, so that other processes don't compile in vain.

    `conditions` is the blob CONDITIONS, or empty if the refusal depends on nothing. `of_graph`:
    one of _OF_GRAPHS, for a graph that is at fault for these arguments, which says nothing about
    other sizes. `breaks`: as in `Untraceable`.
    """
    arguments = kinds_of_arguments(call.scope.frame_locals)
    return store.Draft(
        key=call.fingerprint.key,
        identity=recipe.identity,
        kind="bypass",
        cost_seconds=0.0,
        factors=call.fingerprint.factors,
        about={
            **_about(recipe, call, arguments),
            "reason": reason,
            "calls": call.signature.types,
            **({of_graph: True} if of_graph else {}),
            **({"breaks": True} if breaks else {}),
        },
        blobs=conditions,
    )


def limit_draft(recipe: Recipe, call: Call, reason: str, limit: int) -> store.Draft:
    """A note that calls of a function have caused as many compiles as they may in a process."""
    draft = bypass_draft(recipe, call, reason, {})
    return draft._replace(about={**draft.about, "calls": _ANY_CALL, "limit": limit})


def limit_in(note: store.Manifest, limit: int) -> str | None:
    """What a process said that came to a limit as high as this one, or None."""
    reached, said = note.about.get("limit"), note.about.get("reason")
    if note.about.get("calls") != _ANY_CALL or not isinstance(reached, int):
        return None
    return said if reached >= limit and isinstance(said, str) else None


def _conditions_in(note: store.Draft) -> Checker | None:
    """What the refusal in a note depends on, if that is known."""
    return restore.candidate(note.blobs) if CONDITIONS in note.blobs else None


def set_up_draft(
    recipe: Recipe, call: Call, outcome: SetUpFirst, conditions: Conditions, node: int
) -> store.Draft:
    """A note of what such calls do to a model first, so that other processes need no trace."""
    return store.Draft(
        key=call.fingerprint.key,
        identity=recipe.identity,
        kind="set-up",
        cost_seconds=0.0,
        factors=call.fingerprint.factors,
        about={
            **_about(recipe, call, kinds_of_arguments(call.scope.frame_locals)),
            "reason": outcome.reason,
            "calls": call.signature.types,
        },
        blobs=set_up_blobs(outcome.set_up.name, node, conditions, outcome.sizes),
    )


def _due(blobs: Mapping[str, bytes], scope: Scope) -> SetUp | None:
    """The set-up that a note is about, if its conditions hold and it is not done yet.

    Raises `CorruptEntry`.
    """
    from npugx_cache.conditions import set_up

    name, node = set_up_of(blobs)
    checker = restore.candidate(blobs)
    if not 0 <= node < len(checker.conditions.parents):
        raise CorruptEntry("set_up: a place that is not in the tree")
    return set_up.due(name, checker.value(node, scope)) if checker.holds(scope) else None


def is_about(manifest: store.Manifest, call: Call) -> bool:
    """Whether a note was made for arguments of these types, whatever its conditions are."""
    return manifest.about.get("calls") == call.signature.types
