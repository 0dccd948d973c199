"""Answers a graph that somebody else traced: restores its entry, or compiles and stores one."""

from __future__ import annotations

import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from npugx_cache import events, store
from npugx_cache.backend import engines
from npugx_cache.backend.frame_shims import handed_over_by_dynamo
from npugx_cache.conditions import Kind, shapes
from npugx_cache.conditions.evaluate import Scope
from npugx_cache.entry import restore
from npugx_cache.entry.artifact import CONDITIONS, READABLE
from npugx_cache.errors import CorruptEntry, VerificationError
from npugx_cache.interpreter.forks import NamedLocks
from npugx_cache.key import environment
from npugx_cache.pieces.cached_graph import CachedGraph
from npugx_cache.pieces.loaded import PARTS
from npugx_cache.portable import NotPortable
from npugx_cache.private import compile_lock, process_groups
from npugx_cache.store_client import StoreClient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npugx_cache.backend.inference_only import Gradients
    from npugx_cache.conditions.check import Checker
    from npugx_cache.config import Settings
    from npugx_cache.counters import Counters
    from npugx_cache.entry.artifact import Artifact
    from npugx_cache.entry.restore import BoundProgram
    from npugx_cache.events.progress import Progress
    from npugx_cache.key.recipe import Shaping
    from npugx_cache.pieces.compiled import Caller
    from npugx_cache.pieces.piece import Piece
    from npugx_cache.trace.lowered import PortableGraph

    Blobs: TypeAlias = Mapping[str, bytes] | store.Miss

_compiling = NamedLocks()
_programs: weakref.WeakValueDictionary[tuple[str, int | None], BoundProgram] = (
    weakref.WeakValueDictionary()
)
"""The programs of this process by their entries, and by the current device that they are bound to.
The layers of a model have equal graphs, and each of them is a piece."""


class PieceLookup(StoreClient):
    """Answers one piece from one store.

    `captures`: whether graphs are captured on a device; a caller that captures by itself says no.
    `caller`: the cached function that the graph is a piece of.
    """

    subject = "graph"

    def __init__(
        self,
        piece: Piece,
        shaping: Shaping,
        settings: Settings,
        counters: Counters,
        *,
        captures: bool = True,
        caller: Caller | None = None,
    ) -> None:
        title = piece.text.title if caller is None else caller.title
        super().__init__(title, shaping.backend, settings, counters)
        self.piece = piece
        self.shaping = shaping
        self.captures = captures
        self._scope = Scope({**piece.text.symbols.values(), **piece.tensors_by_name}, {})
        self._tried: set[str] = set()

    def answer(self) -> CachedGraph:
        """What runs the graph. Raises `NotPortable` for a graph that can't be stored.

        Raises also `refuse.NotEager`, and what the user asked for (`CacheMiss`, errors of passes).
        """
        started = time.perf_counter()
        opened = self.open_store()
        found = self._restore_first_fitting(opened, started, "hit") if opened is not None else None
        key = self.piece.fingerprint.key
        if found is None and opened is not None and self._remote_brings(opened, key, key):
            found = self._restore_first_fitting(
                opened, started, "hit, fetched from the remote tier"
            )
        if found is not None:
            return found
        if self.settings.on_miss == "raise":
            raise self._record_miss()
        if self.settings.on_miss == "eager":
            return self._bypass_compile("NPUGX_CACHE_ON_MISS=eager forbids a compile")
        if reason := compile_lock.obstacle():
            raise NotPortable(reason)
        # Dynamo's lock first, because a thread that Dynamo has called holds it already.
        with compile_lock.tracing_alone(), _compiling.hold(key):
            if opened is None:
                return self._compile_piece(None, started)
            answers: list[CachedGraph] = []

            def is_answered() -> bool:
                answer = (
                    None
                    if answers
                    else self._restore_first_fitting(opened, started, "hit after waiting")
                )
                answers.extend([answer] if answer is not None else [])
                return bool(answers)

            wait, timeout = self.settings.lock_wait, process_groups.shortest_timeout()
            with opened.lock(key, wait=wait, needed_within=timeout, done=is_answered):
                return answers[0] if is_answered() else self._compile_piece(opened, started)

    def _no_entry(self) -> str:
        none = super()._no_entry()
        return none if self.title == self.piece.text.title else f"{self.piece.text.title}: {none}"

    def _bypass_compile(self, reason: str) -> CachedGraph:
        self.tell_of_bypass(reason, "on_miss")
        return CachedGraph(self.piece.graph_module.forward, None, self.explain_lookup())

    # --- restore

    def _restore_first_fitting(
        self, opened: store.Store, started: float, outcome: str
    ) -> CachedGraph | None:
        candidates = opened.candidates(self.piece.fingerprint.key)
        refusals = [self._fault(opened, r.entry, r.reason) for r in candidates.refused]
        for manifest in candidates.manifests:
            if manifest.entry in self._tried:
                continue
            self._tried.add(manifest.entry)
            program = self._restore_entry(opened, manifest)
            if isinstance(program, restore.BoundProgram):
                opened.record_hit(manifest)
                self._count("hits", seconds=manifest.cost_seconds)
                self._tell_of_hit(outcome, manifest.entry, started)
                if self.settings.verify == "recompile":
                    self._recheck(opened, manifest)
                read = partial(_parts, opened, manifest)
                return self._ready(program, manifest.entry, read)
            refusals.append(program)
        if refusals:
            self.refusals = tuple(sorted(refusals, key=lambda refusal: len(refusal.reasons)))
        elif not self.refusals:
            factors, identity = self.piece.fingerprint.factors, self.piece.identity
            self.refusals = tuple(self._from_siblings(opened, identity, factors, ""))
        return None

    def _restore_entry(
        self, opened: store.Store, manifest: store.Manifest
    ) -> BoundProgram | events.Refusal:
        blobs = opened.read(manifest, [CONDITIONS])
        if isinstance(blobs, store.Miss):
            return self._fault(opened, manifest.entry, blobs.reason)
        try:
            candidate = restore.candidate(blobs)
            if not candidate.holds(self._scope):
                kind, reasons = restore.refusal(candidate, self._scope, restore.NO_CODE)
                return events.Refusal(entry=manifest.entry, reasons=reasons, kind=kind)
            device = candidate.conditions.device
            known = manifest.entry, device.index if device else None
            program = _programs.get(known)
            if program is None:
                code = _parts(opened, manifest)
                if isinstance(code, store.Miss):
                    return self._fault(opened, manifest.entry, code.reason)
                program = restore.bind_program(code, device, handed_over_by_dynamo)
                program = _programs.setdefault(known, program)
            self._guard(candidate)
        except CorruptEntry as error:
            opened.quarantine(manifest, str(error))
            return self._fault(opened, manifest.entry, str(error))
        except NotPortable as error:
            return events.Refusal(entry=manifest.entry, reasons=(str(error),), kind="code")
        return program

    def _guard(self, candidate: Checker) -> None:
        """Make what the entry demands of sizes a guard of the trace that goes on.

        A later call with sizes of which a condition is not true then makes the tracer come back
        with a new graph, as it would if the graph had been lowered here.
        """
        values = self.piece.text.symbols.symbolic()
        for condition in candidate.conditions.arguments(Kind.SHAPE):
            if not shapes.prepare(condition)(values):
                raise NotPortable("a condition on sizes does not hold of the symbols of this trace")

    def _ready(
        self, program: BoundProgram, entry: str | None, blobs: Callable[[], Blobs]
    ) -> CachedGraph:
        """The program with captured graphs of its own, and with the tensors that the graph holds.

        Layers that share a program don't share captured graphs, because a captured graph knows the
        addresses of its parameters.
        """
        captures = None
        if self.captures:
            captures = engines.captures_for(self.backend, self.title, self.shaping.options)
        run, held = program.make_runner(captures, program.bindings.layout), self.piece.held
        if program.bindings.parts:
            from npugx_cache.backend import inner_tensors

            run = inner_tensors.taking_apart(run, program.bindings.parts)
        called = (lambda *inputs: run(*inputs, *held)) if held else run
        return CachedGraph(called, entry, self.explain_lookup(), self._saver(blobs))

    def _saver(self, blobs: Callable[[], Blobs]) -> Callable[[Gradients | None], bytes]:
        """What gives the graph as bytes for a file of torch's, or raises `NotPortable`.

        It lives as long as the graph, and holds none of the inputs.
        """
        text, factors, backend = self.piece.text, self.piece.fingerprint.factors, self.backend
        held, has_wrappers, title = len(self.piece.held), text.has_wrappers, text.title
        options = self.shaping.options if self.captures else None

        def save_graph(gradients: Gradients | None) -> bytes:
            from npugx_cache.pieces.saved import Saved

            if held:
                raise NotPortable(f"it holds {held} tensors of its own")
            if has_wrappers:
                raise NotPortable("an input holds other tensors, and a file tells nothing of it")
            found = blobs()
            if isinstance(found, store.Miss):
                raise NotPortable(found.reason)
            return Saved(title, backend, options, factors, found).to_bytes(gradients)

        return save_graph

    # --- compile

    def _compile_piece(self, opened: store.Store | None, started: float) -> CachedGraph:
        from npugx_cache.events import progress
        from npugx_cache.interpreter import garbage

        with garbage.collect_at_end(), progress.Progress(self.title) as told:
            artifact, seconds = self._artifact(told)
            blobs = artifact.to_blobs()
            told.begin("binding")
            candidate = restore.candidate(blobs)
            if not candidate.holds(self._scope):
                failures = restore.failures(candidate, self._scope, restore.NO_CODE)
                raise NotPortable(f"the entry refuses its own graph: {failures}")
            device = candidate.conditions.device
            program = restore.bind_program(blobs, device, handed_over_by_dynamo)
            self._count("misses", self._kind_of_miss(), seconds)
            told.begin("publishing")
            published = self._publish(opened, self._draft(blobs, seconds)) if opened else None
            entry = published.manifest.entry if isinstance(published, store.Published) else None
            told.end()
            if entry is not None:
                _programs[entry, device.index if device else None] = program
            nearest = self.refusals[0] if self.refusals else None
            self._tell_of_miss(published, nearest, started, seconds, told.phases)
        return self._ready(program, entry, lambda: blobs)

    def _artifact(self, told: Progress) -> tuple[Artifact, float]:
        from npugx_cache.compile import pack
        from npugx_cache.interpreter.work_time import WorkTime

        worked = WorkTime()
        with compile_lock.tracing_alone(), compile_lock.Disturbance() as disturbance:
            graph = self._lower_piece(told)
            if reason := disturbance.reason():
                raise NotPortable(reason)
        told.begin("packing")
        artifact = pack(self.piece.text.title, graph, self.piece.fingerprint.factors)
        return artifact, worked.seconds()

    def _lower_piece(self, told: Progress) -> PortableGraph:
        from npugx_cache.compile import optimise
        from npugx_cache.trace import piece as traced

        told.begin("lowering")
        graph_module, inputs, static = self.piece.lift_held_tensors()
        return traced.portable(
            graph_module,
            inputs,
            self.piece.tensors_by_name,
            self.piece.text.describe_inputs(),
            static,
            self.piece.text.symbols,
            self.piece.text.methods,
            decompositions=dict(self.shaping.decompositions),
            shaping=tuple(self.shaping.shaping_code()),
            optimise=partial(optimise, self.shaping, told),
        )

    def _draft(self, blobs: Mapping[str, bytes], seconds: float) -> store.Draft:
        """What is published. It follows from the graph alone: equal graphs make one entry."""
        fingerprint = self.piece.fingerprint
        return store.Draft(
            key=fingerprint.key,
            identity=self.piece.identity,
            kind="piece",
            cost_seconds=seconds,
            factors=fingerprint.factors,
            about={
                "function": self.piece.text.title,
                "held": len(self.piece.held),
                "backend": self.backend,
                "signature": self.piece.text.signature,
                "signature_id": fingerprint.key,
                "environment": environment.summary(),
            },
            blobs=blobs,
        )

    def _recheck(self, opened: store.Store, manifest: store.Manifest) -> None:
        """Compile a hit again and compare: `verify="recompile"`. Raises `VerificationError`."""
        from npugx_cache.entry import recheck
        from npugx_cache.events.progress import Progress

        stored = opened.read(manifest, [READABLE])
        if isinstance(stored, store.Miss):
            raise VerificationError(self.title, stored.reason, None, None)
        with Progress(self.title) as told:
            fresh, _ = self._artifact(told)
        recheck.compare_artifacts(self.title, stored[READABLE].decode(), fresh.readable)


def _parts(opened: store.Store, manifest: store.Manifest) -> Blobs:
    present = {ref.name for ref in manifest.blobs}
    return opened.read(manifest, present & set(PARTS))
