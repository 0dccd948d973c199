"""Compiles and applies patterns by torch's pattern matcher. Importing this loads Inductor."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._guards import detect_fake_mode, tracing
from torch._inductor import pattern_matcher as torchs
from torch.utils._python_dispatch import _disable_current_modes

from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import fx


class _Kept(NamedTuple):
    """`matcher` was made of `patterns`, which stay alive because `_kept` finds them by `id`."""

    patterns: tuple[Any, ...]
    matcher: torchs.PatternMatcherPass


_kept: dict[tuple[object, ...], _Kept] = {}


def compiled(
    patterns: tuple[Any, ...], allowed: Callable[[Any], bool]
) -> torchs.PatternMatcherPass:
    """One pass made of several patterns, which hold arguments of torch's `register_replacement`.

    The patterns are traced once and kept. They are traced outside the modes of the graph that is
    being compiled, because AOTAutograd calls a compiler under its own fake mode, in which the
    example inputs of a pattern can't be used. `allowed` decides about each match before the
    pattern's own check.
    """
    with _disable_current_modes(), tracing(None), torch.no_grad():
        # Autocast and the default dtype change what a pattern is traced to.
        key = (*map(id, patterns), allowed, repr(runtime.global_state()))
        if key not in _kept:
            _kept[key] = _Kept(patterns, _traced(patterns, allowed))
        return _kept[key].matcher


def _traced(patterns: Iterable[Any], allowed: Callable[[Any], bool]) -> torchs.PatternMatcherPass:
    matcher = torchs.PatternMatcherPass()
    for pattern in patterns:
        arguments = pattern.arguments()
        check = arguments.pop("extra_check") or (lambda _: True)
        trace = arguments.pop("trace_fn") or torchs.fwd_only
        # Example inputs may be fake tensors of their own fake mode.
        with detect_fake_mode(list(arguments["example_inputs"])) or contextlib.nullcontext():
            torchs.register_replacement(
                trace_fn=trace,
                pass_dicts=matcher,
                extra_check=_both(allowed, check),
                **arguments,
            )
    return matcher


def _both(first: Callable[[Any], bool], second: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda match: first(match) and second(match)


def apply(matcher: torchs.PatternMatcherPass, graph: fx.Graph) -> int:
    for node in graph.nodes:  # an earlier pass left these numbers, which are outdated now
        node.meta.pop("mutation_region_id", None)
    return int(matcher.apply(graph))
