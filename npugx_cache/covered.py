"""Whose code needs no fact of its own: the versions in the fingerprint stand for it."""

from __future__ import annotations

import sys
from pathlib import Path

_COVERED = frozenset({"torch", "torch_npu", "npugx_cache"}) | sys.stdlib_module_names


_COMPILERS = ("torch._dynamo", "torch_npu.dynamo", "npugraph_ex")
"""torch_npu loads its own compiler under the last name as well, once somebody compiles with it."""


def is_covered_module(name: str) -> bool:
    first = name.partition(".")[0]
    return first in _COVERED or (first == _COMPILERS[-1] and _is_of_torch_npu(name))


def is_compiler(name: str) -> bool:
    """Whether it is a module of a compiler: one that a restored function does without."""
    named = any(name == each or name.startswith(f"{each}.") for each in _COMPILERS)
    return named and is_covered_module(name)


def _is_of_torch_npu(name: str) -> bool:
    package, module = (getattr(sys.modules.get(n), "__file__", None) for n in ("torch_npu", name))
    if package is None or module is None:
        return False
    return Path(module).is_relative_to(Path(package).parent)
