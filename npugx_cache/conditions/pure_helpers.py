"""Functions of libraries that only compute something from plain arguments, and are called again.

What such a function gives is a root of the tree of conditions: a restore calls the function with
the same arguments, and the conditions are about what the function gives then. Dynamo does not look
into the function, so that there are no conditions on what happens inside: einops walks sets of the
names in a pattern, and the order of a set differs from process to process.
"""

from __future__ import annotations

import ast
import sys
from typing import Any

HELPERS = {
    "einops.einops": frozenset(
        {"_prepare_transformation_recipe", "_compactify_pattern_for_einsum"}
    ),
    "einops.packing": frozenset({"analyze_pattern"}),
}
"""By module. torch traces through their caches too, because they only parse patterns (see
`_EINOPS_LRU_CACHE_WRAPPER_ALLOWLIST` in `torch/_dynamo/decorators.py`)."""


def call(module: str, name: str, arguments: str) -> Any:
    """What a helper gives; `arguments` is a literal of a tuple and a dict. Raises anything.

    No other function is called, whatever a stored entry names.
    """
    if name not in HELPERS.get(module, ()):
        raise LookupError(f"{module}.{name} is no helper")
    given, named = ast.literal_eval(arguments)
    return vars(sys.modules[module])[name](*given, **named)


def start_libraries() -> None:
    """Do to a library what torch does when Dynamo meets it: einops finds its backend for torch.

    A restore does not load Dynamo. Without this, the first call of a restarted process would miss,
    because einops' tables are empty, which they never are in a trace.
    """
    einops = sys.modules.get("einops")
    if einops is None or einops in _started:
        return
    _started.append(einops)
    version = tuple(int(part) for part in str(einops.__version__).split(".")[:3] if part.isdigit())
    if version >= _TRACED_SINCE:
        import torch

        einops.rearrange(torch.empty(1), "i -> i")


_started: list[Any] = []
_TRACED_SINCE = (0, 8, 2)
