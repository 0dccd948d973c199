"""Whose code needs no fact of its own: the versions in the fingerprint stand for it."""

from __future__ import annotations

import sys

_COVERED = frozenset({"torch", "torch_npu", "npugx_cache"}) | sys.stdlib_module_names


def is_covered_module(name: str) -> bool:
    return name.partition(".")[0] in _COVERED
