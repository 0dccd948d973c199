"""What the text of a graph needs in order to run, checked by the text itself in one line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npugx_cache.backend.program import COLLECTIVES, HIGHER_ORDER, STREAMS
from npugx_cache.entry.view.graph_text import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npugx_cache.backend.program import Program
    from npugx_cache.entry.view.given import Input
    from npugx_cache.portable import Plain

_OURS, _DUMP = "npugx_cache", "dump"
_ALWAYS = frozenset({"", "aten", "prims", HIGHER_ORDER})
_KIND = re.compile(r"[a-z]+")


def check(program: Program, inputs: Sequence[Input]) -> Iterator[str]:
    """The lines that set `CANNOT_RUN` to the reason why the graph can't run here, or to ""."""
    used = {operator.namespace for operator in program.operators}
    if COLLECTIVES in used:
        yield 'CANNOT_RUN = "it exchanges tensors with other ranks"'
    elif STREAMS in used:
        yield 'CANNOT_RUN = "it works on streams that its process hands over"'
    elif any(operator[:2] == (_OURS, _DUMP) for operator in program.operators):
        yield 'CANNOT_RUN = "it writes tensors to files"'
    else:
        yield 'CANNOT_RUN = ""'
    if used & {HIGHER_ORDER, _OURS}:
        yield "try:"
        yield f"    import {_OURS}.backend.operators  # registers the operators"
        if HIGHER_ORDER in used:
            yield f"    from {_OURS}.backend.control_flow import {OPERATORS}"
        yield "except ImportError:"
        yield f'    CANNOT_RUN = CANNOT_RUN or "it needs the package {_OURS}"'
    for kind in sorted(_devices(program, inputs) - {"cpu", "meta"}):
        yield f'if not getattr(getattr(torch, "{kind}", None), "is_available", bool)():'
        yield f'    CANNOT_RUN = CANNOT_RUN or "there is no {kind}"'
    custom = sorted({op for op in program.operators if op.namespace not in _ALWAYS})
    for namespace, name, overload in custom:
        if namespace in (COLLECTIVES, STREAMS):
            continue
        yield f"if not hasattr(torch.ops.{namespace}, {name!r}):"
        yield (
            f'    CANNOT_RUN = CANNOT_RUN or "operator {namespace}::{name} is not registered; '
            'import what registers it"'
        )
        del overload


def _devices(program: Program, inputs: Sequence[Input]) -> set[str]:
    names = {given.device for given in inputs}
    names |= {constant.device for constant in program.constants}
    for function in (*program.functions, program.main):
        for call in function.calls:
            for arg in call.arguments():
                names |= set(_device_names(arg))
    return {found[0] for name in names if (found := _KIND.match(name)) is not None}


def _device_names(data: Plain) -> Iterator[str]:
    if isinstance(data, list):
        if len(data) == 2 and data[0] == "device":
            yield str(data[1])
        else:
            for item in data:
                yield from _device_names(item)
