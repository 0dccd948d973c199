"""The plain engine: the aten graph as it was traced, no passes. The reference for the others."""

from __future__ import annotations

from npugx_cache.backend.engines import Engine

ENGINE = Engine(name="aot_eager", passes=lambda *_: ())
