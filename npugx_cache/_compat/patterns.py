"""torch's pattern matcher. Checked on torch 2.11 and 2.13. Importing this loads Inductor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._inductor import pattern_matcher as torchs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import fx


def compile_patterns(
    patterns: Iterable[Mapping[str, Any]], allowed: Callable[[Any], bool]
) -> torchs.PatternMatcherPass:
    """One pass of several patterns, given as the arguments of torch's `register_replacement`.

    `allowed` decides about each match before the pattern's own check.
    """
    matcher = torchs.PatternMatcherPass()
    for pattern in patterns:
        arguments = dict(pattern)
        check = arguments.pop("extra_check") or (lambda _: True)
        trace = arguments.pop("trace_fn") or torchs.fwd_only
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
    for node in graph.nodes:  # left by an earlier pass, and wrong by now
        node.meta.pop("mutation_region_id", None)
    return int(matcher.apply(graph))
