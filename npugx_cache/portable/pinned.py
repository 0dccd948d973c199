"""Tells which modules are version-pinned, so that no source facts are recorded for their code.

The versions of torch, torch_npu, the standard library and this package are in the cache key.
"""

from __future__ import annotations

import sys
from pathlib import Path

_COVERED = frozenset({"torch", "torch_npu", "npugx_cache"}) | sys.stdlib_module_names


_COMPILERS = ("torch._dynamo", "torch_npu.dynamo", "npugraph_ex")
"""The compilers. torch_npu loads its own as `npugraph_ex`, too, when somebody compiles with it."""


def is_covered_module(name: str) -> bool:
    first = name.partition(".")[0]
    return first in _COVERED or (first == _COMPILERS[-1] and _is_of_torch_npu(name))


def is_compiler(name: str) -> bool:
    """Whether a module belongs to a compiler. A restored function does not load such a module."""
    named = any(name == each or name.startswith(f"{each}.") for each in _COMPILERS)
    return named and is_covered_module(name)


def _is_of_torch_npu(name: str) -> bool:
    package, module = (getattr(sys.modules.get(n), "__file__", None) for n in ("torch_npu", name))
    if package is None or module is None:
        return False
    return Path(module).is_relative_to(Path(package).parent)
