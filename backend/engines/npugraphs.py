"""Capture alone: the aten graph as it was traced, captured on whatever device it is on.

But for attention with lengths on the host, which must write to given memory to be updated.
"""

from __future__ import annotations

from npugx_cache.backend.engines import Engine
from npugx_cache.backend.passes.workspaces import give_workspaces

ENGINE = Engine(name="npugraphs", passes=lambda *_: (("workspaces", give_workspaces),))
