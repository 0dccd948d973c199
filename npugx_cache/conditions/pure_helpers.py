"""Functions that are called again at a restore, because what they give is a condition.

What such a function gives for plain arguments is a root of the tree of conditions: a restore calls
the function with the same arguments, and the conditions are about what the function gives then.
Dynamo does not look into the function, so that there are no conditions on what happens inside.
Some only compute something: einops walks sets of the names in a pattern, and the order of a set
differs from process to process. Others say which packages are installed.
"""

from __future__ import annotations

import ast
import importlib
import sys
from typing import Any

HELPERS = {
    "einops.einops": frozenset(
        {"_prepare_transformation_recipe", "_compactify_pattern_for_einsum"}
    ),
    "einops.packing": frozenset({"analyze_pattern"}),
    "importlib.metadata": frozenset({"version"}),
    "importlib.util": frozenset({"find_spec"}),
}
"""By module. torch traces through their caches too, because they only parse patterns (see
`_EINOPS_LRU_CACHE_WRAPPER_ALLOWLIST` in `torch/_dynamo/decorators.py`)."""


def call(module: str, name: str, arguments: str) -> Any:
    """What a helper gives; `arguments` is a literal of a tuple and a dict. Raises anything.

    No other function is called, whatever a stored entry names.
    """
    if module == "einx":
        from npugx_cache.conditions import einx_code  # few entries need it

        return einx_code.write_code(name, arguments)
    if name not in HELPERS.get(module, ()):
        raise LookupError(f"{module}.{name} is no helper")
    given, named = ast.literal_eval(arguments)
    return _in_one_order(vars(importlib.import_module(module))[name](*given, **named))


def _in_one_order(value: Any) -> Any:
    """What a helper gave, without the order in which a set of names was walked.

    einops lists the given axes of a group in such an order, and multiplies their lengths. The list
    is replaced as a whole, because another thread may be reading it.
    """
    groups = getattr(value, "input_composition_known_unknown", None)
    if groups is not None:
        ordered = [(sorted(known), unknown) for known, unknown in groups]
        if ordered != groups:
            value.input_composition_known_unknown = ordered
    return value


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
