"""`cached_graph`: from a graph that somebody else traced to what runs it, through the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from npugx_cache import config, events, version
from npugx_cache.backend import engines
from npugx_cache.backend import options as backend_options
from npugx_cache.counters import PROCESS, Counters
from npugx_cache.errors import (
    BackendUnavailable,
    CacheMiss,
    OptionError,
    PassError,
    VerificationError,
)
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.key import environment
from npugx_cache.key.recipe import Shaping, check_decompositions, check_options
from npugx_cache.passing import is_passing
from npugx_cache.pieces.cached_graph import CachedGraph
from npugx_cache.portable import NotPortable
from npugx_cache.private import exports
from npugx_cache.store_client import StoreClient

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx

    from npugx_cache.config import Settings

Answer = TypeVar("Answer")

ASKED_FOR = (BackendUnavailable, CacheMiss, OptionError, PassError, VerificationError)
"""Raised also without `strict`: what the user asked for can't be had, or the user's own pass
failed."""

counters = Counters(PROCESS)
"""The counts of the pieces of this process that belong to no cached function."""


class Caller(NamedTuple):
    """A cached function that runs in pieces: its name in logs, and where its pieces are counted."""

    title: str
    counters: Counters


def cached_graph(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    backend: str = "npugraph_ex",
    options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    strict: bool = False,
    custom_decompositions: Mapping[Any, Any] | None = None,
    capture: bool = True,
) -> CachedGraph:
    """What runs a graph that you traced, for inference: restored, or compiled and stored.

    `example_inputs` are the values of the placeholders, real or fake; their sizes are numbers or
    symbols of torch's. A size that is a symbol may differ from call to call. What the compiled
    graph relies on in such a size becomes a guard of the symbol's `ShapeEnv`, and you must check
    the guards before you call the graph with other sizes. All else about the inputs (types,
    devices, strides, which of them share memory) must be as in the examples at each call.

    The graph itself may be changed: calls that mean something in this process alone become
    operators. Tensors that it holds stay yours; they are not copied, and not stored.
    The module of an exported program (`ep.module()`) is called with its own arguments afterwards,
    and checks them as before; `example_inputs` are then its positional arguments, or
    `ep.example_inputs`. Sizes that are dynamic in the program stay dynamic.
    `capture=False`: run the operators one by one, because you capture the calls by yourself. The
    other arguments are those of `cache_compile`.
    A graph that can't be cached is compiled for this process; the result then has no `entry`.
    """
    events.heed_environment()
    engine = engines.check_name(backend)
    shaping = Shaping(
        backend=engine,
        options=check_options(backend_options.parse(options, engine)),
        decompositions=check_decompositions(custom_decompositions),
    )
    settings = config.load(cache_dir=cache_dir, strict=strict)
    if exports.takes_nested(graph_module):
        from npugx_cache.pieces.exported import of_module

        return of_module(graph_module, example_inputs, shaping, settings, captures=capture)
    return of_graph(graph_module, example_inputs, shaping, settings, captures=capture)


def of_graph(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    shaping: Shaping,
    settings: Settings,
    *,
    captures: bool,
    caller: Caller | None = None,
    is_apart: bool = False,
) -> CachedGraph:
    """See `cached_graph`. `caller` is the cached function that the graph is a piece of.

    `is_apart`: as in `Piece`.
    """
    counted = counters if caller is None else caller.counters
    title = f"{len(example_inputs)} inputs" if caller is None else caller.title
    clients = [StoreClient(title, shaping.backend, settings, counted)]

    def answer() -> CachedGraph | Bypassed | None:
        reason = environment.obstacle(untested_torch=settings.untested_torch)
        if reason is not None:
            return Bypassed(reason, "unsupported")
        if settings.mode == "off":
            return None
        from npugx_cache.pieces.lookup import PieceLookup
        from npugx_cache.pieces.piece import Piece

        piece = Piece.of(graph_module, example_inputs, shaping, is_apart=is_apart)
        lookup = PieceLookup(piece, shaping, settings, counted, captures=captures, caller=caller)
        clients.append(lookup)
        return lookup.answer()

    with torch.no_grad():
        found = attempt_answer(answer, clients[0])
        if isinstance(found, CachedGraph):
            return found
        if found is not None:
            clients[-1].tell_of_bypass(*found)
        if is_apart:
            from npugx_cache.trace.apart import graph_apart

            graph_module = graph_apart(graph_module)
        if version.is_too_old(torch.__version__):
            return CachedGraph(graph_module.forward, None, ())
        unserved = environment.unserved_versions(untested_torch=settings.untested_torch)
        try:
            run = _compile_uncached(graph_module, example_inputs, shaping)
        except Exception as error:
            let_through(error)
            may_fail = unserved is not None and not isinstance(error, ASKED_FOR)
            if settings.strict or not (may_fail or is_passing(error)):
                raise
            clients[-1].tell_of_bypass(
                f"it runs eagerly: {type(error).__name__}, see the log", "fault"
            )
            events.logger.exception("%s: not compiled", title)
            run = graph_module.forward
        return CachedGraph(run, None, ())


class Bypassed(NamedTuple):
    """Why a graph runs without the cache. `kind` is one of `counters.BYPASS_REASONS`, or empty."""

    reason: str
    kind: str = ""


def attempt_answer(attempt: Callable[[], Answer], client: StoreClient) -> Answer | Bypassed:
    """What an attempt to answer from the cache gives, or the reason why there is no answer.

    Raises what the user asked for, and every fault under `strict`.
    """
    try:
        return attempt()
    except NotPortable as error:
        return Bypassed(str(error))
    except Exception as error:
        if client.settings.strict or isinstance(error, ASKED_FOR):
            raise
        let_through(error)
        # The one boundary of P2: a fault of ours must not become a fault of the worker.
        events.logger.exception("%s: a fault of the cache", client.title)
        return Bypassed(f"a fault of the cache: {type(error).__name__}, see the log", "fault")


def _compile_uncached(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], shaping: Shaping
) -> Callable[..., Any]:
    from npugx_cache.backend.compile import compile_graph

    return compile_graph(
        graph_module,
        example_inputs,
        shaping.options,
        engine=shaping.backend,
        from_dynamo=True,
        decompositions=dict(shaping.decompositions),
    )
