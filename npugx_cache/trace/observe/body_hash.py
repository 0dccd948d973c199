"""Hashes the body of a function, to tell whether somebody has read this body.

The hash is of the syntax tree without docstrings, so it is the same in every version of Python, and
comments don't count.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
import types
from pathlib import Path
from typing import Any

from npugx_cache.passing import is_passing


def body_hash(function: object) -> str | None:
    """A hash of what a function does; None if it is no plain function with a source to read."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType) or not Path(code.co_filename).is_file():
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError, TypeError, ValueError) as error:
        if is_passing(error):
            raise
        return None
    return hashlib.sha256(repr(_shape(tree)).encode()).hexdigest()[:16]


def _shape(node: Any) -> object:
    """A syntax tree as tuples, without docstrings and without what differs between Pythons."""
    if isinstance(node, list):
        return [_shape(each) for each in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        first = node.body[0]
        is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        fields["body"] = node.body[is_text and isinstance(first.value.value, str) :]  # type: ignore[attr-defined]
    kept = ((name, _shape(value)) for name, value in fields.items() if value not in (None, []))
    return (type(node).__name__, *kept)
