"""`load_graph`: restores a graph by its entry alone. Loads no compiler (P3).

Nobody has the graph here, so no key can be made of it: that the entry is the one for the graph is
the caller's word. All else of the key is compared, and the conditions are checked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache import config, events, store
from npugx_cache.backend import engines, runtime
from npugx_cache.backend import options as backend_options
from npugx_cache.conditions import Kind, Step
from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.evaluate import Scope
from npugx_cache.entry import restore
from npugx_cache.entry.artifact import BINDINGS, CONDITIONS, CONSTANTS, LIBRARY
from npugx_cache.errors import CorruptEntry
from npugx_cache.key import environment
from npugx_cache.key.fingerprint import differences
from npugx_cache.key.recipe import Shaping, check_decompositions, check_options
from npugx_cache.pieces.cached_graph import CachedGraph
from npugx_cache.portable import NotPortable
from npugx_cache.store import Miss

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from npugx_cache.backend.options import Options
    from npugx_cache.key.fingerprint import Named

PARTS = (CONDITIONS, BINDINGS, CONSTANTS, LIBRARY)
"""The blobs that a restored graph is made of."""


def load_graph(
    entry: str,
    *,
    held: Sequence[torch.Tensor] = (),
    backend: str = "npugraph_ex",
    options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    custom_decompositions: Mapping[Any, Any] | None = None,
    capture: bool = True,
) -> CachedGraph | Miss:
    """What runs the graph of an entry of `cached_graph`, or why the entry can't be used here.

    `held` are the tensors that the graph held when it was stored, in the order of their first use.
    The other arguments are those of `cached_graph`. Neither the graph nor a compiler is loaded.
    What the entry demands of sizes that may vary is not checked, because only who traced the graph
    knows the sizes.
    """
    events.heed_environment()
    engine = engines.check_name(backend)
    shaping = Shaping(
        backend=engine,
        options=check_options(backend_options.parse(options, engine)),
        decompositions=check_decompositions(custom_decompositions),
    )
    settings = config.load(cache_dir=cache_dir)
    if reason := environment.obstacle(untested_torch=settings.untested_torch):
        return Miss(reason)
    opened = store.open_store(settings)
    if isinstance(opened, store.Unusable):
        return Miss(opened.reason)
    manifest = opened.find(entry)
    if isinstance(manifest, Miss):
        return manifest
    if manifest.kind != "piece":
        return Miss(f"{entry} is an entry of the kind {manifest.kind}, which is no single graph")
    if (count := manifest.about.get("held")) != len(held):
        return Miss(f"the graph holds {count!r} tensors, {len(held)} are given")
    recorded = [factor for factor in manifest.factors if not factor[0].startswith("graph.")]
    live = [*shaping.shaping_factors(), *_environment(recorded)]
    if reasons := list(differences(recorded, live)):
        return Miss("; ".join(reasons))
    present = {ref.name for ref in manifest.blobs}
    blobs = opened.read(manifest, present & set(PARTS))
    if isinstance(blobs, Miss):
        return blobs
    captured = shaping.options if capture else None
    try:
        run = bind_graph(blobs, str(manifest.about.get("function")), engine, captured, held)
    except CorruptEntry as error:
        opened.quarantine(manifest, str(error))
        return Miss(str(error))
    if isinstance(run, Miss):
        return run
    opened.record_hit(manifest)
    return CachedGraph(run, manifest.entry, ())


def unlike_here(recorded: Iterable[Named]) -> list[str]:
    """How this process differs from the one that a graph was made in, in words."""
    rows = tuple(recorded)
    live = dict(_environment(rows))
    return list(differences([row for row in rows if row[0] in live], live.items()))


def _environment(recorded: Iterable[Sequence[str]]) -> Iterator[Named]:
    """The factors of this process, for a graph on the kinds of device that were recorded."""
    kinds = environment.device_kinds(name for name, *_ in recorded)
    yield from environment.factors(kinds, traced=False)
    yield from environment.lowering_factors()


def bind_graph(
    blobs: Mapping[str, bytes],
    title: str,
    backend: str,
    options: Options | None,
    held: Sequence[torch.Tensor],
) -> Callable[..., Any] | Miss:
    """What runs a graph, or the condition that is not true here. Raises `CorruptEntry`.

    `options`: what captured graphs are made with; None if nothing is to be captured.
    """
    checker = restore.candidate(blobs)
    if Kind.TYPE in checker.conditions.checks:
        return Miss("an input holds other tensors: give `cached_graph` the graph and the inputs")
    checks = dict(checker.conditions.checks)
    checks.pop(Kind.SHAPE, None)
    unsized = replace(checker.conditions, checks=checks)
    places = zip(unsized.steps, unsized.args, strict=True)
    sizes = [str(name) for step, name in places if step == Step.LOCAL]  # now nothing reads them
    scope, checker = Scope(dict.fromkeys(sizes), {}), Checker(unsized)
    with torch.no_grad():  # as in the lookup that compiled it
        if not checker.holds(scope):
            return Miss("; ".join(restore.failures(checker, scope, restore.NO_CODE)))
    try:
        program = restore.bind_program(blobs, unsized.device)
    except NotPortable as error:
        return Miss(str(error))
    if runtime.streams_of(program.run) is not None:
        return Miss("it works on streams, which Dynamo hands over at each call")
    captures = engines.captures_for(backend, title, options) if options else None
    run = program.make_runner(captures, program.bindings.layout)
    return (lambda *inputs: run(*inputs, *held)) if held else run
