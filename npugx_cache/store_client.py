"""What asks one store for entries, for a function or for a graph, and tells what came of it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from npugx_cache import config, events, store
from npugx_cache.errors import CacheMiss, StoreError, Uncacheable
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.key import environment
from npugx_cache.key.fingerprint import differences, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npugx_cache.config import Settings
    from npugx_cache.counters import Counters
    from npugx_cache.key.fingerprint import Factor

_MAX_REFUSALS = 16
_MAX_BYPASSES = 64
USUAL = "refused"
"""The kind of reason of most bypasses."""
_USED, _MISSED, _BYPASSED = "hit", "miss", "bypass"


class StoreClient:
    """Opens a store, publishes, and tells the log, the journal and `.explain()` of each lookup.

    `title` names the function or the graph in logs. `backend` is the name of its backend.
    """

    subject = "function"

    def __init__(self, title: str, backend: str, settings: Settings, counters: Counters) -> None:
        self.title = title
        self.backend = backend
        self.settings = settings
        self.counters = counters
        self.refusals: tuple[events.Refusal, ...] = ()
        """Why no stored entry was used, by the last lookup that missed or was a bypass."""
        self._remote: tuple[str, ...] = ()
        """What kept the remote tier from answering the last lookup that asked it."""
        self._last: tuple[str, str] | None = None
        """The outcome of the last lookup, and the entry that was used, or a reason about none."""
        self._journaled: set[str] = set()
        """The reasons of bypasses that the journal has from this function and process."""
        self._warned: set[str] = set()
        self._kinds: dict[str, str] = {}
        """The kinds of reasons of bypasses, if the kind is not the usual one."""
        self._access: store.Access | None = None
        self._store: store.Store | store.Unusable | None = None
        """The store as it was when it was asked for last."""

    def open_store(self) -> store.Store | None:
        access = self._access
        if access is None:
            access = self._access = access_for(self.backend, self.settings)
        found = self._store = access.store()
        if not isinstance(found, store.Unusable):
            return found
        if self.settings.mode != "off":
            events.warn_once(f"cache not used: {found.reason}")
            if self.settings.strict:
                raise StoreError(found.reason)
        return None

    def _fault(self, opened: store.Store, entry: str, reason: str) -> events.Refusal:
        """An entry that the store could not deliver: a miss, or an error under `strict`."""
        if reason == store.REMOVED:
            return events.Refusal(entry=entry, reasons=(reason,), kind="first")
        what = f"entry {entry[:12]}" if entry else "the store"
        if self.settings.strict:
            raise StoreError(f"{opened.root}: {what}: {reason}")
        told = f"{self.title}: {what} not used: {reason}"
        if entry:
            events.logger.warning("%s", told)
        else:
            events.warn_once(told)
        return events.Refusal(
            entry=entry, reasons=(reason,), kind="damaged" if entry else "no_store"
        )

    def _remote_brings(self, opened: store.Store | None, key: str, first: str) -> bool:
        """Whether the remote tier, if the store has one, has brought new entries of a key.

        `first` is the `signature_id` of the entry that is wanted most.
        """
        ended = events.phase_span("fetching", self.title) if self.settings.remote else None
        fetched = None if opened is None else opened.fetch(key, first)
        if ended is not None:
            ended()
        self._remote = (fetched.reason,) if fetched is not None and fetched.reason else ()
        return fetched is not None and bool(fetched.new)

    def _from_siblings(
        self, opened: store.Store, identity: str, factors: Iterable[Factor], place: object
    ) -> Iterator[events.Refusal]:
        """Why entries of the same function or graph are under other keys, most similar first.

        `place` says where the code of the function is.
        """
        rows, factors = [], tuple(factors)
        for manifest in opened.siblings(identity):
            reasons = tuple(differences(manifest.factors, factors, place=place))
            if reasons and manifest.kind in ("graph", "piece"):
                kind = kind_of(reasons[0].split()[0])
                rows.append(events.Refusal(entry=manifest.entry, reasons=reasons, kind=kind))
        yield from sorted(rows, key=lambda refusal: len(refusal.reasons))[:_MAX_REFUSALS]

    def _publish(
        self, opened: store.Store, draft: store.Draft
    ) -> store.Published | store.NotStored:
        answer = opened.publish(draft)
        if isinstance(answer, store.Published):
            self.counters.add("stored")
            return answer
        self.counters.add("not_stored")
        if self.settings.strict:
            raise StoreError(f"{opened.root}: {answer.reason}")
        level = events.logger.debug if opened.readonly else events.logger.warning
        level("%s: not stored in %s: %s", self.title, opened.root, answer.reason)
        return answer

    def tell_of_bypass(self, reason: str, kind: str = "") -> None:
        """Count and tell of a call or a graph that runs without the cache.

        A reason that comes back keeps its `kind`, one of `counters.BYPASS_REASONS`.
        """
        self._warn(reason)
        if kind:
            self._kinds[reason] = kind
        self._count("bypasses", self._kinds.get(reason, USUAL))

    def _count(self, outcome: str, kind: str = "", seconds: float = 0.0) -> None:
        """Count how a lookup ended; `seconds` of compiling were saved by a hit, lost by a miss."""
        self.counters.count_lookup(outcome, kind, seconds)
        events.tell_span(outcome, kind)

    def _kind_of_miss(self) -> str:
        """Why the lookup missed, as one of `counters.MISS_REASONS`."""
        if isinstance(self._store, store.Unusable):
            return "no_store"
        return self.refusals[0].kind if self.refusals else "first"

    def _warn(self, reason: str) -> None:
        self._end_in_bypass(reason)
        if self.settings.strict:
            raise Uncacheable(self.title, reason)
        if reason in self._warned:
            return
        self._warned.add(reason)
        if reason == environment.unserved_versions(untested_torch=self.settings.untested_torch):
            events.warn_once(f"nothing is cached in this process: {reason}")
        else:
            # Once for all instances of a class, of which a model may have hundreds.
            events.warn_once(f"{self.title} runs uncached: {reason}")

    def _record_miss(self) -> CacheMiss:
        nearest = self.refusals[0] if self.refusals else None
        reasons = nearest.reasons if nearest else (self._no_entry(),)
        self._count("misses", self._kind_of_miss())
        self._last = _MISSED, "" if nearest else reasons[0]
        told = () if nearest else reasons
        self._write_journal(_MISSED, (*told, *self._remote), nearest)
        return CacheMiss(self.title, (*reasons, *self._remote))

    def explain_lookup(self) -> tuple[events.Refusal, ...]:
        """What the last lookup came to (`CachedFunction.explain`)."""
        if self._last is None:
            return ()
        outcome, what = self._last
        if outcome == _USED:
            return (events.Refusal(entry=what, reasons=("used, because its conditions hold",)),)
        texts = [what] if what else []
        if isinstance(self._store, store.Unusable) and self._access is not None:
            texts += [text for text in [self._no_entry()] if text != what]
            if not isinstance(self._access.store(), store.Unusable):
                texts.append("by now the store can be used")
        about_none = [events.Refusal(entry="", reasons=(text,)) for text in texts]
        missed = outcome == _MISSED and self._remote
        remote = (events.Refusal(entry="", reasons=self._remote),) if missed else ()
        return (*about_none, *self.refusals, *remote)

    def _no_entry(self) -> str:
        """Why there was no entry to compare a miss with."""
        if isinstance(self._store, store.Unusable):
            is_off = self.settings.mode == "off"
            return self._store.reason if is_off else f"the store is not used: {self._store.reason}"
        return f"no entry for this {self.subject}"

    def _tell_of_hit(self, outcome: str, entry: str, started: float) -> None:
        self._last = _USED, entry
        self._log(outcome, started, f"entry {entry[:12]}")

    def _tell_of_miss(
        self,
        published: store.Published | store.NotStored | None,
        nearest: events.Refusal | None,
        started: float,
        seconds: float,
        phases: tuple[tuple[str, float], ...],
    ) -> None:
        """`published` is the answer of the store, if there is a store; a hit saves `seconds`."""
        none, opened = self._no_entry(), self._store
        reasons = str(nearest) if nearest else none
        self._log("miss", started, f"{reasons}; compiled with {seconds:.2f} s of processor time")
        told = () if nearest else (none,)
        writable = isinstance(opened, store.Store) and opened.readonly is None
        if isinstance(published, store.NotStored) and writable:
            told = (f"{store.NOT_STORED}: {published.reason}", *told)
        self._last = _MISSED, told[0] if told else ""
        stored = published.manifest.entry if isinstance(published, store.Published) else ""
        told = (*told, *self._remote)
        self._write_journal(_MISSED, told, nearest, stored, seconds, phases)

    def _end_in_bypass(self, reason: str) -> None:
        self._last = _BYPASSED, reason
        # Each call would add a line, because a bypass ends nothing, and some reasons name sizes.
        if reason not in self._journaled and len(self._journaled) < _MAX_BYPASSES:
            self._journaled.add(reason)
            nearest = self.refusals[0] if self.refusals else None
            self._write_journal(_BYPASSED, (reason,), nearest)

    def _write_journal(
        self,
        outcome: str,
        reasons: tuple[str, ...],
        nearest: events.Refusal | None,
        stored: str = "",
        seconds: float = 0.0,
        phases: tuple[tuple[str, float], ...] = (),
    ) -> None:
        """Note in memory what a lookup came to; a timer writes it later. Never raises a fault.

        The reasons of `nearest`, the entry that fits best, are noted after `reasons`.
        """
        if self.settings.mode == "off":
            return
        opened = self._store
        try:
            line = store.JournalLine(
                time=time.time(),
                function=self.title,
                outcome=outcome,
                reasons=(*reasons, *(nearest.reasons if nearest else ())),
                pid=os.getpid(),
                rank=config.rank(),
                nearest=nearest.entry if nearest else "",
                stored=stored,
                seconds=seconds,
                readonly=not isinstance(opened, store.Store) or opened.readonly is not None,
                phases=phases,
            )
            store.journal_of(str(self.settings.cache_dir), config.state_folder()).add(line)
        except Exception as error:  # noqa: BLE001 - a call must not fail for it
            let_through(error, memory=False)
            events.logger.debug("%s: not noted in the journal: %r", self.title, error)

    def _log(self, outcome: str, started: float, detail: str) -> None:
        """The one INFO line of a lookup."""
        took = (time.perf_counter() - started) * 1e3
        events.logger.info("%s: %s in %.1f ms: %s", self.title, outcome, took, detail)


def access_for(backend: str, settings: Settings) -> store.Access:
    """The way to the store that entries of a backend may come from."""
    unusable = None
    if backend in ("inductor", "ge") and settings.trust == "group":
        unusable = store.Unusable(
            f"the backend {backend!r} stores machine code, which is loaded under the trust modes "
            "private and signed only, not under group",
            "settings",
        )
    return store.Access(settings, unusable)
