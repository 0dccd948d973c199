"""The code that einx writes for a call of one of its functions.

A function of einx parses its pattern, makes Python code that calls torch, and runs the code. einx
shows the code when it is asked to (`graph=True`). The code depends on the pattern, the sizes of the
tensors, the backend that is in force, and einx itself; on no value of a tensor. So what einx did in
a trace is one text, and a restore asks einx for the text again.
"""

from __future__ import annotations

import ast
import functools
import sys
from typing import Any

MODULE, FUNCTIONS = "einx", "einx._src.frontend.ops"
"""The module that users call functions of, and the module that defines the functions."""
RUNNING = (
    "einx._src.frontend.api",
    "einx._src.tracer.compiler.python",
    "einx._src.util.lru_cache",
)
"""The modules that lead from a call to the code, and run the code."""
SIZES, FLOAT = "sizes", "float"
"""The keys of the dicts that stand for a tensor of some sizes, and for a float: `repr` of an
infinite one is no literal."""


def is_function(function: Any) -> bool:
    """Whether it is a function of einx that is called with a pattern and tensors."""
    einx = sys.modules.get(MODULE)
    if einx is None or getattr(function, "__module__", None) != FUNCTIONS:
        return False
    return vars(einx).get(getattr(function, "__name__", "")) is function


def write_code(name: str, arguments: str) -> str:
    """The code for a call; `arguments` is a literal of a tuple and a dict. Raises anything."""
    function = vars(sys.modules[MODULE])[name]
    if not is_function(function):
        raise LookupError(f"{MODULE}.{name} is no function of einx")
    given, named = _arguments(arguments)
    operands = [_operand(each) for each in given]
    code = str(function(*operands, **named, graph=True))
    if not _has_own_backends():  # after the call, because a call registers backends
        raise LookupError("somebody else's backend is registered with einx")
    return code


@functools.lru_cache(maxsize=1024)
def _arguments(written_as: str) -> Any:
    return ast.literal_eval(written_as)


def _operand(given: Any) -> Any:
    if type(given) is not dict:
        return given
    return _tensor(given[SIZES]) if SIZES in given else float(given[FLOAT])


@functools.lru_cache(maxsize=256)
def _tensor(sizes: tuple[int, ...]) -> Any:
    import torch

    return torch.empty(sizes, device="meta")


def _has_own_backends() -> bool:
    """Whether all backends are einx's own: another one may look at more than the sizes."""
    own = sys.modules["einx._src.frontend.backend"]
    state = own.registry.state
    return all(
        type(each) is own.InvalidBackend
        or (
            type(each) is own.Backend
            and _is_einxs(each.is_supported_tensor)
            and _is_einxs(each.get_shape)
        )
        for each in (*state.backends, *state.use_stack)
    )


def _is_einxs(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("einx._src.frontend.impl.")
