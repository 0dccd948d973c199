"""Tells which Python kernels torch's own operators have besides torch's.

Such a kernel stands in no graph: `functional.gelu` is no operator for Dynamo, and the lowered graph
holds what the kernel called. So it is a fact of the process, and so is that there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache import location
from npugx_cache.portable import code_hash
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.private import dispatcher
from npugx_cache.private.runtime import operator_of
from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Kernels(NamedTuple):
    """`text` names the kernels and their code; `obstacle` is why nothing can be cached."""

    text: str = ""
    obstacle: str | None = None


class _Known:
    version: object = None
    names: frozenset[str] = frozenset()
    foreign: Sequence[tuple[str, str]] = ()
    kernels = Kernels()


texts = [""]
"""The text of the kernels as `refresh` found it, for readers in C."""


def is_current() -> bool:
    return _Known.version == dispatcher.version()


def refresh() -> Kernels:
    """The kernels of this process, which are looked for only after a change."""
    version = dispatcher.version()
    # Where one went and another came, the names are the same: the kernels must be asked again.
    changed = bool(_Known.foreign) or dispatcher.has_changed(_Known.names)
    if _Known.version != version and changed:
        names, foreign = dispatcher.names(), dispatcher.foreign_kernels()
        rows = list(_describe_kernels(foreign))
        reasons = [each for _, _, each in rows if each]
        text = "; ".join(text for _, text, _ in rows)
        _Known.names, _Known.foreign = names, foreign
        _Known.kernels = Kernels(text, reasons[0] if reasons else None)
        texts[0] = text
    _Known.version = version
    return _Known.kernels


def _describe_kernels(foreign: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    """The name of the operator, what its kernel is, and why nothing can be cached with it."""
    for name, key in foreign:
        place = None
        try:
            entry = dispatcher.entry_of(operator_of(name), key)
        except LookupError:
            text = "a function that can't be asked for its code"
        else:
            if entry is None:
                text = "nothing, it falls through"
            else:
                module = str(entry.space.get("__name__"))
                if is_covered_module(module) and not dispatcher.is_of_torch_library(module):
                    continue
                text = f"{module}.{entry.code.co_qualname} {code_hash(entry.code)[:16]}"
                place = location.of_code(entry.code)
        what = f"{name} has a Python kernel for {key}, which runs while a graph is traced"
        change = "call a function in the place of the operator"
        is_seen = not dispatcher.runs_only_on_data(key)
        yield name, f"{name} for {key}: {text}", location.reason(what, place, change) * is_seen
