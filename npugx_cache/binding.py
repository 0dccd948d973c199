"""One binding of a function: the object it is bound to, its graphs, counters, last refusals."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from npugx_cache import arguments
from npugx_cache.answer.lookup import Lookup
from npugx_cache.backend import engines
from npugx_cache.counters import PROCESS, CacheInfo, Counters, Warmed
from npugx_cache.interpreter.forks import survive_forks
from npugx_cache.specialisations import Specialisations

if TYPE_CHECKING:
    from npugx_cache.capture_plan import Recorder
    from npugx_cache.config import Settings
    from npugx_cache.entry.failed_run import Failure
    from npugx_cache.key.recipe import Recipe


class State:
    """One binding: a function alone, or a function with one object that it is bound to.

    Safe to use from several threads.
    """

    def __init__(self, recipe: Recipe, settings: Settings, owner: object, warm: str | None) -> None:
        self.counters = Counters(PROCESS)
        self.specialisations = Specialisations()
        self.captures = engines.captures_for(recipe.backend, recipe.title, recipe.options)
        self.lookup = Lookup(recipe, settings, self.counters, self.captures, self.specialisations)
        # Now, because a graph may raise when no file can be opened.
        from npugx_cache.entry.failed_run import failure_of

        self._failure_of = failure_of
        self._warming = threading.RLock()
        survive_forks(self, "_warming")
        self.plan_wanted = warm == "plan" and self.captures is not None
        self._recorder: Recorder | None = None
        if self.captures is not None:
            self.captures.owner = arguments.reference(owner)
            if recipe.options.static_kernel_compile:
                from npugx_cache.entry.kernel_packages import StoredPackages

                self.captures.packages = StoredPackages(settings)
            state = weakref.ref(self)  # a strong one would keep graphs until garbage is collected

            def note_change() -> None:
                alive = state()
                if alive is not None:
                    alive.record_captures()

            self.captures.changed = note_change

    def record_captures(self) -> None:
        """Record the captured graphs soon, so that another process can capture them ahead."""
        with self.lookup.faults_logged():
            if self._recorder is None:
                from npugx_cache.capture_plan import Recorder

                self._recorder = Recorder(self.lookup)
            self._recorder.note_captures()

    def failure(self, error: Exception) -> Failure | None:
        """The graph whose program raised `error`, if the function itself may run that call."""
        if self.lookup.settings.strict:
            return None
        return self._failure_of(self.specialisations, error)

    def warm(self) -> Warmed:
        """Bind the entries that have capture plans, and capture the graphs in these plans."""
        warmed = Warmed()
        if self.captures is None:
            return warmed
        lookup = self.lookup
        with self._warming, lookup.faults_logged(raises=lookup.settings.strict):
            from npugx_cache import capture_plan

            self.plan_wanted = False
            bound, warmed = capture_plan.warm(self.lookup, tuple(self.specialisations))
            self.specialisations.add(bound)
            if warmed.graphs:
                self.record_captures()
        return warmed

    def info(self) -> CacheInfo:
        info = self.counters.info(len(self.specialisations) + self.lookup.pieces_bound())
        if self.captures is None or not len(self.captures.graphs):
            return info
        from npugx_cache.capture_plan import graphs_of

        return info._replace(graphs=graphs_of(self.specialisations))
