"""Reads of a `__dict__` that need no guard, with torch before 2.13. Checked on torch 2.11.

That torch has no guard for such a read, so code with one is not cached (`trace/surroundings.py`).
What an object holds that the trace itself made follows from the trace: transformers' ModelOutput
looks into its own `__dict__` in the forward of every model. Importing this loads the compiler.
"""

from __future__ import annotations

from typing import Any

from torch._dynamo import symbolic_convert
from torch._dynamo.variables import user_defined
from torch._dynamo.variables.base import AttributeMutationNew

from npugx_cache._compat import unguarded
from npugx_cache._compat.runtime import torch_version


def _was_made_in_the_trace(value: Any) -> bool:
    return (
        isinstance(value, user_defined.UserDefinedObjectVariable)
        and value.source is None
        and isinstance(value.mutation_type, AttributeMutationNew)
        and not any(_hides_attributes(cls) for cls in type(value.value).__mro__)
    )


def _hides_attributes(cls: type) -> bool:
    """Whether Dynamo could find a property or slot where the `__dict__` has something else."""
    return any(
        hasattr(type(value), "__set__") for name, value in vars(cls).items() if name[:2] != "__"
    )


def _note_dict(asked: unguarded.Asked, translator: Any, attr: Any) -> None:
    if attr == "__dict__":
        reads = asked.dict_reads.setdefault((translator.f_code, translator.lineno), [])
        reads.append(_was_made_in_the_trace(translator.stack[-1]))


if torch_version() < (2, 13):
    unguarded.note_before(symbolic_convert.InstructionTranslatorBase, "_load_attr", _note_dict)
