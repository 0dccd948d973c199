"""The plain engine: runs the aten graph as it was traced. The reference for the other engines."""

from __future__ import annotations

from npugx_cache.backend.engines import Engine

ENGINE = Engine(name="aot_eager", passes=lambda *_: ())
