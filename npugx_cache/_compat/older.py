"""What torch before 2.13 traces otherwise than eager does it. Seen on torch 2.11."""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING

from npugx_cache._compat.runtime import torch_version

if TYPE_CHECKING:
    import types

_OLDER = torch_version() < (2, 13)

SETTINGS: dict[str, object] = {"specialize_float": True} if _OLDER else {}
"""Dynamo's settings besides. A float that changes would become a tensor, whose guard has no form
that another process can check."""


def starred_assignment(code: types.CodeType) -> int | None:
    """The line of `first, *rest = ...`, in which `rest` becomes a tuple."""
    found = (i for i in dis.get_instructions(code) if _OLDER and i.opname == "UNPACK_EX")
    for each in found:
        return (each.positions.lineno if each.positions else None) or code.co_firstlineno
    return None
