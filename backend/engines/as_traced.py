"""The engines that run the aten graph as it was traced: `aot_eager`, `cudagraphs`, `npugraphs`.

`aot_eager` is the reference for the other engines. The other two capture the graph, on whatever
device it is on. `npugraphs` changes only attention with lengths on the host: these calls must write
to given memory, or a replay could not give them other lengths (`passes.workspaces`).
"""

from __future__ import annotations

from npugx_cache.backend.engines import Engine
from npugx_cache.backend.passes.workspaces import give_workspaces

ENGINES = {
    "aot_eager": Engine(passes=lambda *_: ()),
    "cudagraphs": Engine(passes=lambda *_: ()),
    "npugraphs": Engine(passes=lambda *_: (("workspaces", give_workspaces),)),
}
