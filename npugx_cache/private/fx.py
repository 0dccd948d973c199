"""What a trace by torch.fx does to `nn.Module` while it runs, for all threads. Loads no torch."""

from __future__ import annotations

import sys
import types
from typing import Any


def without_fx(function: Any) -> Any:
    """What torch.fx wrapped, if it is a function of `nn.Module` that a trace wraps for all threads.

    `torch.fx.Tracer.trace` replaces `nn.Module.__getattr__` and `nn.Module.__call__` while it runs,
    also in a `torch.export` of another thread. For the modules of other traces the wrapper changes
    nothing. Other things than functions are asked for nothing: a proxy may run code of the user's.
    """
    fx = sys.modules.get("torch.fx._symbolic_trace")
    while fx is not None and type(function) is types.FunctionType:
        if function.__globals__ is not vars(fx):
            break
        function = vars(function).get("__wrapped__")
    return function
