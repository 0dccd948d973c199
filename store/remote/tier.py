"""`RemoteTier`: fetches entries into a folder before a compile, and sends new entries afterwards.

Nothing here raises into a call, and no call waits longer for the tier than `BUDGET`, except for the
compile of another host.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time
from typing import TYPE_CHECKING

from npugx_cache.counters import PROCESS, asked_remote
from npugx_cache.events.progress import PASSING
from npugx_cache.store.content.entries import entry_names, open_key
from npugx_cache.store.content.lock import Locked, NotLocked
from npugx_cache.store.io import syscalls
from npugx_cache.store.remote import copies
from npugx_cache.store.remote.connection import connection_to
from npugx_cache.store.remote.engine import Fault
from npugx_cache.store.remote.lease import Lease
from npugx_cache.store.remote.writer import Writer
from npugx_cache.store.results import Fetched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npugx_cache.config.remote_address import RemoteAddress
    from npugx_cache.store.folder_store import FolderStore
    from npugx_cache.store.format.manifest import Manifest
    from npugx_cache.store.remote.connection import Connection

BUDGET = 0.25
"""How many seconds one lookup waits for the tier."""
_LATE = f"the remote tier did not answer in {BUDGET * 1000:.0f} ms"
_AGAIN_AFTER = 1.0  # a key is not asked for more often: with ON_MISS=eager each call looks it up
_POLL = 0.5
_LONGEST_WAIT = 600.0
_LOG = logging.getLogger("npugx_cache")


class RemoteTier:
    """A remote tier behind a folder: `store` is filled from it and read instead of it."""

    def __init__(self, text: str, store: FolderStore) -> None:
        self._store = store
        self._connection = connection_to(text)
        self._writer = _writer_of(self._connection)
        self._lookup = _Lookup()
        self._fetches: dict[str, _Fetch] = {}

    def fetch(self, key: str, first: str) -> Fetched:
        """Copy the entries of a key to the folder, waiting at most `BUDGET` seconds.

        `first` is the signature of the call: the call waits only for entries with this signature,
        and the others go on in the background.
        """
        lookup = self._lookup
        lookup.key, lookup.first, lookup.left = key, first, BUDGET
        return self._fetch(key, first, again=False)

    def _fetch(self, key: str, first: str, *, again: bool) -> Fetched:
        started = time.monotonic()
        fetched = self._fetch_key(key, first, again=again)
        asked_remote("lookup", fetched.outcome, time.monotonic() - started)
        return fetched

    def _fetch_key(self, key: str, first: str, *, again: bool) -> Fetched:
        lookup = self._lookup
        reason = self._connection.obstacle()
        if reason is not None:
            lookup.left = 0.0
            is_shut = self._connection.shut_for() > 0
            return Fetched(reason=reason, outcome="breaker_open" if is_shut else "unusable")
        fetch = self._fetches.get(key)
        if fetch is None or fetch.is_over(again=again):
            skip = frozenset(self._connection.withdrawn)
            fetch = _Fetch(self._connection, self._store, key, first, skip)
            self._fetches[key] = fetch
            try:
                threading.Thread(target=fetch.run, name="npugx-cache-fetch", daemon=True).start()
            except RuntimeError as error:  # an interpreter that ends starts no thread
                return Fetched(reason=f"the remote tier was not asked: {error}")
        started = time.monotonic()
        in_time = fetch.enough.wait(lookup.left)
        lookup.left -= time.monotonic() - started
        fetch.late = not in_time
        if in_time:
            outcome = "ok" if fetch.new else fetch.outcome
            return Fetched(new=fetch.new, reason=fetch.reason(), outcome=outcome)
        if fetch.answered:
            reason = f"{_LATE}; its entries are still on their way"
            return Fetched(new=fetch.new, reason=reason, outcome="timeout")
        self._connection.note_fault(_LATE)
        return Fetched(reason=_LATE, outcome="timeout")

    def publish(self, manifest: Manifest) -> None:
        """Send an entry of the folder to the tier, soon."""
        key, entry = manifest.key, manifest.entry

        def send() -> str | None:
            return copies.send(self._connection, self._store.folder, key, entry)

        self._writer.add(f"entry {entry[:12]}", send)

    def withdraw(self, manifest: Manifest) -> None:
        """Take a bad entry out of the tier, or each new process would fetch it again."""
        path = self._store.folder.manifest(manifest.key, manifest.entry)
        self._connection.withdrawn.add(manifest.entry)

        def delete() -> None:
            self._connection.engine.delete(path)

        self._writer.add(f"entry {manifest.entry[:12]}", delete)

    @contextlib.contextmanager
    def lock(
        self,
        folder: FolderStore,
        name: str,
        *,
        wait: float | None,
        needed_within: float | None = None,
        done: Callable[[], bool] | None = None,
    ) -> Iterator[Locked | NotLocked]:
        """Hold the lock of a name in a folder, and the lease of the tier if there can be one."""
        with folder.lock(name, wait=wait, needed_within=needed_within, done=done) as answer:
            if not isinstance(answer, Locked):
                yield answer
                return
            lease = Lease(self._connection.engine, folder.folder.lock(name))
            other = None
            try:
                longest = _LONGEST_WAIT if wait is None else wait
                if needed_within is not None:
                    longest = min(longest, needed_within / 2 - answer.waited)
                other = self._take(lease, longest, done)
            except Fault as fault:
                self._connection.failed_with(fault)
            try:
                yield answer if other is None else other
            finally:
                # After what the holder published, so that whoever gets the lease next finds it.
                if lease.give_up():
                    self._writer.add(f"lease {name[:12]}", lease.release)

    def _take(
        self, lease: Lease, longest: float, done: Callable[[], bool] | None
    ) -> NotLocked | None:
        """Try to hold a lease, and wait while another host holds it. Raises `Fault`."""
        lookup, connection = self._lookup, self._connection
        if lookup.left <= 0 or connection.obstacle() is not None or not connection.engine.creates:
            return None
        started = time.monotonic()
        taken = _within(lookup.left, lease.take)
        lookup.left -= time.monotonic() - started
        if not taken:
            try:
                other = self._wait_for(lease, longest, done, started)
            finally:
                PROCESS.add("lock_waits")
                PROCESS.add("lock_wait_seconds", time.monotonic() - started)
            if other is not None:
                return other
            lookup.left = BUDGET
        if lookup.left > 0:  # what the last holder has published since this host has looked
            self._fetch(lookup.key, lookup.first, again=True)
        return None

    def _wait_for(
        self, lease: Lease, longest: float, done: Callable[[], bool] | None, started: float
    ) -> NotLocked | None:
        """Wait until this host holds a lease that another host holds. Raises `Fault`."""
        lookup = self._lookup
        _LOG.info("waiting for another host, which compiles the same", extra=PASSING)
        while True:
            while not _within(BUDGET, lease.is_free):
                if time.monotonic() - started >= longest:
                    return _not_locked(started, "still held by another host", held=True)
                time.sleep(_POLL * random.uniform(0.5, 1.0))  # noqa: S311
            lookup.left = BUDGET
            self._fetch(lookup.key, lookup.first, again=True)
            if done is not None and done():
                return _not_locked(started, "the result appeared")
            if _within(BUDGET, lease.take):
                return None


class _Lookup(threading.local):
    """What the lookup of this thread asks for, and how many seconds it may still wait."""

    key, first, left = "", "", 0.0


class _Fetch:
    """One fetch of the entries of a key. `run` runs in a thread of its own."""

    def __init__(
        self,
        connection: Connection,
        store: FolderStore,
        key: str,
        first: str,
        skip: frozenset[str],
    ) -> None:
        self._connection, self._store = connection, store
        self._key, self._first, self._skip = key, first, skip
        self._faults: list[str] = []
        self.outcome = "absent"
        """What came of a fetch that has brought nothing new."""
        self.pid = os.getpid()
        self.new = 0
        self.answered = False
        self.late = False
        self.ended: float | None = None
        self.enough = threading.Event()

    def is_over(self, *, again: bool) -> bool:
        """Whether the tier has to be asked anew. `again`: also if it was asked just now."""
        if self.pid != os.getpid():
            return True
        return self.ended is not None and (again or time.monotonic() - self.ended > _AGAIN_AFTER)

    def reason(self) -> str | None:
        """What kept entries of the tier from being used, if anything did."""
        return "; ".join(self._faults) or None

    def run(self) -> None:
        try:
            self._bring()
            if not self.late:  # a tier that answers too late each time must be left alone as well
                self._connection.note_answer()
        except Fault as fault:
            self._faults.append(self._connection.failed_with(fault))
            self.outcome = fault.outcome
        except Exception as error:  # noqa: BLE001 - nobody else would learn of it
            self.outcome = "failed"
            self._faults.append(f"a fault of the remote tier: {error!r}")
        self.ended = time.monotonic()
        self.enough.set()

    def _bring(self) -> None:
        engine = self._connection.engine
        skip = self._skip | _entries_in(self._store, self._key)
        found = copies.manifests(engine, self._store.folder, self._key, skip)
        self.answered = True
        self._faults += found.faults
        if found.faults:
            self.outcome = "failed"
        for manifest, data in sorted(found.entries, key=lambda item: not self._fits(item[0])):
            fault = copies.bring(self._connection, self._store, manifest, data)
            if fault is not None:
                self._faults.append(fault)
                self.outcome = "failed"
                continue
            self.new += 1
            if self._fits(manifest):
                self.enough.set()

    def _fits(self, manifest: Manifest) -> bool:
        return manifest.about.get("signature_id") == self._first


_writers: dict[RemoteAddress, Writer] = {}


def _writer_of(connection: Connection) -> Writer:
    address = connection.address
    if address not in _writers:
        _writers[address] = Writer(connection)
    return _writers[address]


def _entries_in(store: FolderStore, key: str) -> set[str]:
    try:
        at = open_key(store.folder, key)
    except OSError:
        return set()
    try:
        return set(entry_names(at))
    except OSError:
        return set()
    finally:
        syscalls.close(at)


def _not_locked(started: float, reason: str, *, held: bool = False) -> NotLocked:
    return NotLocked(reason=reason, waited=time.monotonic() - started, held=held)


def _within(seconds: float, job: Callable[[], bool]) -> bool:
    """What a job says. Raises the `Fault` of the job, and one if the job takes longer."""
    answers: list[bool | Fault] = []

    def run() -> None:
        try:
            answers.append(job())
        except Fault as fault:
            answers.append(fault)

    thread = threading.Thread(target=run, name="npugx-cache-lease", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # an interpreter that ends starts no thread
        raise Fault(str(error)) from None
    thread.join(seconds)
    answer = answers[0] if answers else Fault(_LATE)
    if isinstance(answer, Fault):
        raise answer
    return answer
