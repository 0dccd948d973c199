"""Explains a trace that failed because a custom operator has no fake implementation.

Names the operator, and shows the function that has to be written.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npugx_cache._compat import schemas
from npugx_cache.portable import NotPortable, resolve_op

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = (
    re.compile(r"no fake impl registered for <CustomOpDef\((\w+)::(\w+)\)>"),
    re.compile(r"unsupported operator: (\w+)\.(\w+)(?:\.(\w+))?"),
    re.compile(r"UnsupportedOperatorException\D*?(\w+)\.(\w+)\.(\w+)"),
)


def reason_for(text: str) -> str | None:
    """Why a trace failed, if its text says that an operator has no fake implementation."""
    for pattern in _NAMES:
        if found := pattern.search(text):
            namespace, name, *overload = found.groups()
            return _reason(namespace, name, (overload or [None])[0])
    return None


def _reason(namespace: str, name: str, overload: str | None) -> str | None:
    try:
        schema = schemas.schema_of(resolve_op(namespace, name, overload or "default"))
    except NotPortable:
        return None
    if schema is None:
        return None
    full = f"{schema.name}.{schema.overload}" if schema.overload else schema.name
    return (
        f"operator {full} has no fake (meta) implementation, so nobody knows the shape and type of "
        f"its result without running it. Write one: "
        f'@torch.library.register_fake("{full}") '
        f"def _({', '.join(_parameters(schema))}): return {_result(schema)}"
    )


def _parameters(schema: schemas.Schema) -> Iterator[str]:
    starred = False
    for argument in schema.arguments:
        if argument.keyword_only and not starred:
            starred = True
            yield "*"
        yield f"{argument.name}={argument.default!r}" if argument.has_default else argument.name


def _result(schema: schemas.Schema) -> str:
    """A template for the result: tensors like the first tensor argument. The author corrects it."""
    tensors = (each.name for each in schema.arguments if each.type == "Tensor")
    like = next(tensors, None)
    one = f"torch.empty_like({like})" if like else "torch.empty(...)"
    parts = [one if each.holds_tensors else "..." for each in schema.returns]
    return {0: "None", 1: parts[0] if parts else "None"}.get(len(parts), ", ".join(parts))
