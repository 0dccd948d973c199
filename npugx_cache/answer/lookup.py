"""Answers a call that no graph of this process accepts: restores an entry, or compiles one."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from npugx_cache import events, store
from npugx_cache.answer.notes import (
    OF_RESULT,
    Call,
    bypass_draft,
    graph_draft,
    is_about,
    limit_draft,
    limit_in,
    set_up_draft,
)
from npugx_cache.answer.outcomes import Bypass, Ran
from npugx_cache.answer.stored_graphs import LOOKED, Answers, StoredGraphs
from npugx_cache.conditions.kinds import live_state
from npugx_cache.entry import restore
from npugx_cache.entry.artifact import CONDITIONS, CONSTANTS, READABLE
from npugx_cache.entry.restore import Specialisation
from npugx_cache.errors import (
    BackendUnavailable,
    CacheMiss,
    CorruptEntry,
    OptionError,
    PassError,
    VerificationError,
)
from npugx_cache.interpreter.forks import NamedLocks
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.key import environment
from npugx_cache.key.fingerprint import Fingerprint
from npugx_cache.key.signature import Signature, without_texts
from npugx_cache.passing import is_passing
from npugx_cache.portable import NotPortable, digest
from npugx_cache.private import compile_lock, eager_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npugx_cache.answer.recompiles import Recompiles
    from npugx_cache.backend.capture import Captures
    from npugx_cache.compile import Compiled
    from npugx_cache.conditions.evaluate import Scope
    from npugx_cache.conditions.imports import Import
    from npugx_cache.conditions.set_up import SetUp
    from npugx_cache.config import Settings
    from npugx_cache.counters import Counters
    from npugx_cache.entry import first_result
    from npugx_cache.entry.size_history import Known
    from npugx_cache.events.progress import Progress
    from npugx_cache.key.recipe import Recipe
    from npugx_cache.specialisations import Specialisations
    from npugx_cache.trace.outcomes import LocalOnly, SetUpFirst, Untraceable

    First = SetUp | Import  # what a call does before it comes to a graph

_MAX_SET_UPS = 64
_DIFFERS = (
    "the first result of its compiled graph is not the function's own (`npugx-cache triage` finds "
    "the part at fault, NPUGX_CACHE_VERIFY=off compares nothing); what differs: "
)
_ON_MISS = (
    "no stored graph accepts this call, and NPUGX_CACHE_ON_MISS=eager forbids a compile; "
    ".explain() and `npugx-cache misses` say why"
)
# Raised also without `strict`: what the user asked for can't be had, or the user's own pass failed.
_ASKED_FOR = (BackendUnavailable, CacheMiss, OptionError, PassError, VerificationError)


class Lookup(StoredGraphs):
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
        super().__init__(recipe, settings, counters, captures, bound)
        self._recompiles: Recompiles | None = None
        self._beyond: dict[str, str] = {}
        """Why calls that no entry accepts are not compiled, by `Signature.exact`."""
        self._compiling = NamedLocks()

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
            answer = self._answer_despite_faults(args, kwargs, scope, started, warming=warming)
            if isinstance(answer, (Specialisation, Ran, Bypass)):
                return answer
            # No lock of ours is held, and what the library raises is what eager would raise.
            answer.perform()
        return self._bypass("the models in this call have to be set up again and again")

    def _answer_despite_faults(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        scope: Scope,
        started: float,
        *,
        warming: bool,
    ) -> Specialisation | Ran | Bypass | First:
        try:
            return self._look_up(args, kwargs, scope, started, warming=warming)
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
                    self._untraced.note_error(Signature(scope.frame_locals), reason)
            self._end_in_bypass(reason)
            return Bypass(f"a fault of the cache: {error!r}")

    def _look_up(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        scope: Scope,
        started: float,
        *,
        warming: bool,
    ) -> Specialisation | Ran | Bypass | First:
        shape = Signature(scope.frame_locals)
        failed = self._untraced.find_failure(shape, scope)
        breaks = failed is not None and failed.breaks and self.recipe.breaks
        reason, kind = None if failed is None or breaks else failed.reason, ""
        if reason is None and self._beyond and not warming:
            reason = self._beyond.get(shape.exact)
        if reason is None and self._failed:
            reason = self._failed.get(shape.exact)
        if reason is None:  # last, because torch's whole state is read for it
            reason = environment.obstacle(untested_torch=self.settings.untested_torch)
            kind = "unsupported"
        if reason is not None:
            self.refusals = ()  # those of an earlier lookup are about another call
            return self._bypass(reason, kind)
        if failed is not None:
            return self._run_in_pieces_or_eagerly(failed, scope.frame_locals)
        if "einops" in sys.modules:
            from npugx_cache.conditions import pure_helpers

            pure_helpers.start_libraries()
        call = self._call_of(args, kwargs, scope, shape)
        found = self._find(call, started, "hit")
        if found is None:
            found = self._fetch(call, started)
        return self._compile_once(call, started, warming=warming) if found is None else found

    def call_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], scope: Scope) -> Call:
        return self._call_of(args, kwargs, scope, Signature(scope.frame_locals))

    def _call_of(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], scope: Scope, shape: Signature
    ) -> Call:
        live = environment.factors(shape.device_types, scope.switches)
        return Call(args, kwargs, scope, shape, Fingerprint.of((*self.recipe.factors(), *live)))

    # --- restore

    def _find(
        self, call: Call, started: float, outcome: str
    ) -> Specialisation | Bypass | First | None:
        """The store's answer to a call: a graph, now bound, or a note. None if it has neither."""
        with self._restoring:
            known = self.bound.find(call.scope)  # another thread may have bound it meanwhile
            if known is not None:
                return known
            opened = self.open_store()
            if opened is None:
                return None
            key, answers = call.fingerprint.key, Answers()
            likely = opened.likely(key, call.signature.exact)
            found = self._bind_first_likely(opened, likely, call, answers)
            if found is None:
                candidates = opened.candidates(key)
                # First: what a model is without it is no reason why an entry does not fit.
                if (due := self._find_set_up(opened, candidates, call)) is not None:
                    return due
                first = LOOKED not in call.tried
                restored = self._bind_first(opened, candidates, call, answers, first=first)
                if restored is not None and not isinstance(restored, Specialisation):
                    return restored
                found = restored
            if found is not None and self.settings.verify != "recompile":
                self.bound.add([found])
        if found is None:
            refused = self._find_refusal(opened, candidates, call, started)
            if refused is None and first and not self.refusals:
                from npugx_cache import location

                place = location.of_code(self.recipe.function.__code__)
                factors = call.fingerprint.factors
                siblings = self._from_siblings(opened, self.recipe.identity, factors, place)
                self.refusals = tuple(siblings)
            return refused
        self._tell_of_hit(outcome, found.entry or "", started)
        if self.settings.verify == "recompile":
            from npugx_cache.interpreter import garbage

            with garbage.collect_at_end():
                found = self._recheck(found, call)
            self.bound.add([found])
        return found

    def _fetch(self, call: Call, started: float) -> Specialisation | Bypass | First | None:
        """The answer of the remote tier to a call, if the store has one and it brings new entries.

        Asked without a lock, because other calls must not wait for the tier.
        """
        key, signature = call.fingerprint.key, call.signature.exact
        if not self._remote_brings(self.open_store(), key, signature):
            return None
        return self._find(call, started, "hit, fetched from the remote tier")

    # --- compile

    def _compile_once(
        self, call: Call, started: float, *, warming: bool
    ) -> Specialisation | Ran | Bypass | First:
        """Compile, or use the graph that another thread or worker compiles at the same time."""
        if reason := compile_lock.obstacle():
            return self._bypass(reason, "busy")
        if self.settings.on_miss == "raise":
            raise self._record_miss()
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
            if failed := self._untraced.find_failure(call.signature, call.scope):
                return self._run_in_pieces_or_eagerly(failed, call.scope.frame_locals)
            found = self._compile_under_lock(name, call, started, warming=warming)
            graph = found.graph if isinstance(found, Ran) else found
            if isinstance(graph, Specialisation):
                self.bound.add([graph])
            return found

    def _compile_under_lock(
        self, name: str, call: Call, started: float, *, warming: bool
    ) -> Specialisation | Ran | Bypass | First:
        opened = self.open_store()
        if opened is None:
            return self._compile_and_tell(call, None, started, warming=warming)
        answers: list[Specialisation | Bypass | First] = []

        def is_answered() -> bool:  # an entry that appears may be for other values, so it is tried
            if not answers:
                answer = self._find(call, started, "hit after waiting")
                answers.extend([answer] if answer is not None else [])
            return bool(answers)

        def is_refused() -> bool:
            """Whether another worker noted meanwhile that such calls can't be stored.

            Otherwise ranks would wait for each other and compile one after the other for nothing.
            """
            listed = opened.candidates(call.fingerprint.key).bypasses
            return any(is_about(m, call) and m.entry not in call.outdated for m in listed)

        if is_refused():
            return self._compile_and_tell(call, opened, started, warming=warming)
        with self._lock(opened, name, call, lambda: is_answered() or is_refused()):
            if is_answered():
                return answers[0]
            return self._compile_and_tell(call, opened, started, warming=warming)

    @contextlib.contextmanager
    def _lock(
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

    def _compile_and_tell(
        self, call: Call, opened: store.Store | None, started: float, *, warming: bool
    ) -> Specialisation | Ran | Bypass | First:
        from npugx_cache.answer import why_compiled  # a restored call needs none
        from npugx_cache.events import progress
        from npugx_cache.interpreter import garbage

        known = [each.entry for each in self.bound]
        why_compiled.tell_torch(self.recipe, known, self.refusals)
        if events.logger.isEnabledFor(logging.INFO):
            last = why_compiled.last_cost(self.recipe, self.settings, opened)
            why = self.refusals[0].reasons if self.refusals else (self._no_entry(),)
            why_compiled.tell(self.title, why, last)
        with garbage.collect_at_end(), progress.Progress(self.title) as told:
            return self._compile_and_publish(call, opened, started, told, warming=warming)

    def _compile_and_publish(
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
        known = size_history.known_sizes(asked, call.fingerprint.key, call.scope)
        outcome = self._compile(call, known, progress)
        if isinstance(outcome, SetUpFirst):
            if outcome.stored is not None and opened is not None:
                self._note(opened, set_up_draft(self.recipe, call, outcome, *outcome.stored))
            return outcome.set_up
        says_something = getattr(outcome, "lasting", True) and not getattr(outcome, "raised", False)
        if not warming and says_something:
            self._compiles().note(call.signature.leaves, nearest)
        if not isinstance(outcome, Compiled):
            return self._end_uncached(outcome, call, warming=warming)
        blobs = outcome.artifact.to_blobs()
        progress.begin("binding")
        try:
            bound = self._bind_packed(blobs, call)
        except (NotPortable, CorruptEntry) as error:
            return self._end_uncached(outcome.local_only(error), call, warming=warming)
        alike: first_result.Alike | None = None
        if self.settings.verify != "off":
            progress.begin("comparing the first result")
            compared = self._compare_first_result(outcome, blobs, bound, call)
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

    def _compiles(self) -> Recompiles:
        if self._recompiles is None:
            from npugx_cache.answer.recompiles import Recompiles  # a restored call needs none

            self._recompiles = Recompiles(self.settings.recompile_limit)
        return self._recompiles

    def _excess(self, call: Call) -> str | None:
        """Why calls may cause no more compiles, or None; the first process to say so notes it."""
        counted, opened = self._compiles(), self.open_store()
        if opened is None:
            return counted.excess(lambda: None)
        limit = self.settings.recompile_limit

        def find_note() -> str | None:
            listed = opened.candidates(call.fingerprint.key).bypasses
            return next((said for note in listed if (said := limit_in(note, limit))), None)

        reason = counted.excess(find_note)
        # Only at the first call beyond the limit, because later ones must cost little.
        if reason and counted.is_reached and not self._beyond and find_note() is None:
            self._note(opened, limit_draft(self.recipe, call, reason, limit))
        return reason

    def count_with(self, other: Lookup) -> None:
        """Count compiles together with another lookup, under one recompile limit."""
        self._recompiles = other._compiles()

    def _recheck(self, found: Specialisation, call: Call) -> Specialisation:
        """Compile a hit again and compare: `verify="recompile"`. Raises `VerificationError`."""
        from npugx_cache.compile import Compiled
        from npugx_cache.entry import recheck, size_history
        from npugx_cache.events.progress import Progress

        title, opened = self.title, self.open_store()
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
        fresh = self._bind_packed(outcome.artifact.to_blobs(), call)
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

    def _bind_packed(self, blobs: dict[str, bytes], call: Call) -> Specialisation:
        """Bind the packed bytes as a restart will (P7), before they are published.

        Raises if the bytes can't be bound or refuse the call that they were made for. Such bytes
        are never published.
        """
        candidate = restore.candidate(blobs)
        if not candidate.holds(call.scope):
            failures = restore.failures(candidate, call.scope, self.recipe.function.__code__)
            raise NotPortable(f"the entry refuses its own call: {failures}")
        return self._bind(candidate, blobs, call, None)

    def _compare_first_result(
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
        draft = bypass_draft(self.recipe, call, reason, conditions, of_graph=OF_RESULT)
        with self.faults_logged():  # the function has run, and must not run again
            self._note_bypass(draft)
        self._bypass(reason, OF_RESULT)
        expected = answer.expected
        return Bypass(reason, instead=lambda *_, **__: expected)


# One call that needs an answer, and the manifests that are published about it.
