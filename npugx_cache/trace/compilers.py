"""Recognises guards about the code of a compiler; such guards are left out.

The version of the compiler's package is in the key. A restore could not check such a guard, because
it must import neither Dynamo (P3) nor torch_npu's compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from npugx_cache._compat import tracing
from npugx_cache.covered import is_compiler
from npugx_cache.guards import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npugx_cache.trace.roots import Root


S = tracing.sources


def in_compiler(source: Any, root: Callable[[str], Root], frame_globals: Mapping[str, Any]) -> bool:
    """Whether a source is in a compiler. `root` says what a global name stands for."""
    while hasattr(source, "base"):
        if getattr(source, "member", "") == "npugraph_ex" and _is_ops(
            source.base, root, frame_globals
        ):
            return True  # operators that torch_npu's compiler registers when it is loaded
        source = source.base
    if type(source) is not S.GlobalSource:
        return False
    step, arg = root(source.global_name)
    return step is Step.MODULE and is_compiler(str(arg))


def _is_ops(source: Any, root: Callable[[str], Root], frame_globals: Mapping[str, Any]) -> bool:
    """Whether it is `torch.ops`, reached through torch in a global."""
    above = getattr(source, "base", None)
    if getattr(source, "member", "") != "ops" or type(above) is not S.GlobalSource:
        return False
    step, name = root(above.global_name)
    return step is Step.GLOBAL and frame_globals.get(str(name)) is torch
