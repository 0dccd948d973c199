"""The default engine: aten graph, optimised by our passes, run as generated Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache.backend.engines import Engine
from npugx_cache.backend.passes.dead_code import remove_dead_code
from npugx_cache.backend.passes.noop import remove_noops

if TYPE_CHECKING:
    from npugx_cache.backend.options import Options
    from npugx_cache.backend.passes import Pass


def _passes(options: Options) -> tuple[tuple[str, Pass], ...]:
    chosen: list[tuple[str, Pass]] = []
    if options.remove_noop_ops:
        chosen.append(("remove_noop_ops", remove_noops))
    if options.remove_dead_ops:
        chosen.append(("remove_dead_ops", remove_dead_code))
    return tuple(chosen)


ENGINE = Engine(name="npugraph_ex", passes=_passes)
