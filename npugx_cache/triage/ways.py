"""The ways in which a stage runs a call: eager, by torch.compile, or cached with some options."""

from __future__ import annotations

import types
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from npugx_cache.backend import options
from npugx_cache.config import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.api import CachedFunction
    from npugx_cache.counters import CacheInfo
    from npugx_cache.key.recipe import Recipe
    from npugx_cache.triage.events import Events
    from npugx_cache.triage.plan import Plan


class Runs(Protocol):
    """One way to run calls."""

    def adapt_recipe(self, recipe: Recipe, settings: Settings) -> tuple[Recipe, Settings]:
        """What the function is cached with in this way."""

    def run(
        self,
        cached: CachedFunction[..., Any],
        recipe: Recipe,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        number: int,
    ) -> Any:
        """Run the call with this number."""

    def about(self, cached: CachedFunction[..., Any], recipe: Recipe) -> dict[str, Any]:
        """What is known of the last call, for the record."""


class Uncached:
    """The function itself, or what torch.compile makes of it with a backend of torch's."""

    def __init__(self, backend: str | None) -> None:
        self._backend = backend
        self._compiled: dict[int, Callable[..., Any]] = {}

    def adapt_recipe(self, recipe: Recipe, settings: Settings) -> tuple[Recipe, Settings]:
        return recipe, settings

    def run(
        self,
        cached: CachedFunction[..., Any],
        recipe: Recipe,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        number: int,
    ) -> Any:
        del cached, number
        if self._backend is None:
            return recipe.function(*args, **kwargs)
        if id(recipe.function) not in self._compiled:
            self._compiled[id(recipe.function)] = torch.compile(
                recipe.function, backend=self._backend, fullgraph=True, dynamic=recipe.dynamic
            )
        return self._compiled[id(recipe.function)](*args, **kwargs)

    def about(self, cached: CachedFunction[..., Any], recipe: Recipe) -> dict[str, Any]:
        del cached
        return {
            "backend": recipe.backend,
            "options": changed_options(recipe),
            "dynamic": recipe.dynamic,
        }


class Cached:
    """The function through the cache, with a store of the triage's own."""

    def __init__(self, plan: Plan) -> None:
        self._way = plan.way
        # The restored calls use what the cold ones stored.
        name = "cold" if plan.way == "restored" else plan.way
        self._store = Path(plan.scratch) / "stores" / name
        self._infos: dict[int, CacheInfo] = {}

    def adapt_recipe(self, recipe: Recipe, settings: Settings) -> tuple[Recipe, Settings]:
        if self._way == "traced":
            recipe = replace(recipe, backend="aot_eager", options=options.parse(None, "aot_eager"))
        elif self._way == "passes":
            recipe = replace(recipe, options=replace(recipe.options, force_eager=True))
        # A stage shows what a graph gives, also where a worker would refuse the graph.
        usual = Settings(cache_dir=self._store, verify="off")
        limit = max(settings.recompile_limit, usual.recompile_limit)
        # A stage compiles, also where workers must not (NPUGX_CACHE_ON_MISS).
        return recipe, replace(usual, recompile_limit=limit, untested_torch=settings.untested_torch)

    def run(
        self,
        cached: CachedFunction[..., Any],
        recipe: Recipe,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        number: int,
    ) -> Any:
        del recipe, number
        bound = isinstance(cached.__wrapped__, types.MethodType)
        self._infos[id(cached)] = cached.cache_info()
        return cached(*args[bound:], **kwargs)

    def about(self, cached: CachedFunction[..., Any], recipe: Recipe) -> dict[str, Any]:
        del recipe
        before, after = self._infos[id(cached)], cached.cache_info()
        counted = ("misses", "hits", "bypasses")
        lookup = [each for each in counted if getattr(after, each) > getattr(before, each)]
        reasons = [str(each) for each in cached.explain()] if lookup else []
        replays = sum(graph.replays for graph in after.graphs)
        return {"lookup": lookup, "reasons": reasons, "replays": replays}


def of(plan: Plan, events: Events) -> Runs:
    if plan.way == "bisect":
        from npugx_cache.triage.pass_by_pass import PassByPass

        return PassByPass(plan, events)
    if plan.way in ("eager", "eager again"):
        return Uncached(None)
    if plan.way in ("dynamo", "aot_eager"):
        return Uncached("eager" if plan.way == "dynamo" else "aot_eager")
    return Cached(plan)


def changed_options(recipe: Recipe) -> dict[str, str]:
    """The options of a recipe that are not at their defaults."""
    given, usual = recipe.options, options.Options()
    return {
        each.name: _text(getattr(given, each.name))
        for each in fields(given)
        if getattr(given, each.name) != getattr(usual, each.name, None)
    }


def _text(value: Any) -> str:
    if callable(value):
        name = getattr(value, "__qualname__", type(value).__qualname__)
        return f"{getattr(value, '__module__', '')}.{name}"
    return repr(value)
