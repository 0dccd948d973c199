"""Capture alone: the aten graph as it was traced, captured on whatever device it is on."""

from __future__ import annotations

from npugx_cache.backend.engines import Engine

ENGINE = Engine(name="npugraphs", passes=lambda *_: ())
