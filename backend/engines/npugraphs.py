"""The engine that only captures: the aten graph as it was traced, on whatever device it is on.

It changes only attention with lengths on the host. These calls must write to given memory, or a
replay could not give them other lengths (`passes.workspaces`).
"""

from __future__ import annotations

from npugx_cache.backend.engines import Engine
from npugx_cache.backend.passes.workspaces import give_workspaces

ENGINE = Engine(name="npugraphs", passes=lambda *_: (("workspaces", give_workspaces),))
