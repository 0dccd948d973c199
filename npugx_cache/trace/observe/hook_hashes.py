"""Tells whether the functions of Dynamo that hooks replace are still those that we have checked.

The hashes of the checked functions are in one table for each minor version of torch, such as
`hooks_2_13.txt`. `python -m npugx_cache.trace.observe.hook_table --write` writes the table, after
somebody has read the functions. We hash the syntax tree without docstrings, so a hash is the same
in every version of Python, and comments don't count. Parsing is slow, so a table also has the
hashes of whole files: the functions in an unchanged file need not be parsed.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
import types
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HERE = Path(__file__).parent
_IN_TORCH = "/torch/"
_NO_CODE = "-"
"""Stands in a table for a target without code, such as a dict: only its name is checked."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A table of what was checked.

    `targets`: by target, the name and hash of the function, and the classes that override it.
    `files`: the hashes of source files, by name.
    """

    targets: Mapping[str, str]
    files: Mapping[str, str]


def tables() -> dict[tuple[int, int], Path]:
    """The files of all tables, by the version of torch."""
    found = (path.stem.split("_")[1:] for path in _HERE.glob("hooks_*_*.txt"))
    return {(int(a), int(b)): _HERE / f"hooks_{a}_{b}.txt" for a, b in sorted(found)}


def checked_for(version: tuple[int, int]) -> Checked | None:
    """The table for a version of torch; None if there is none."""
    path = tables().get(version)
    return None if path is None else read(path)


def read(path: Path) -> Checked:
    rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row and not row[0].startswith("#")]
    return Checked(
        {row[1]: " ".join(row[2:]) for row in rows if row[0] == "hook"},
        {row[1]: row[2] for row in rows if row[0] == "file"},
    )


def table_text(values: Mapping[str, tuple[Any, list[str]]]) -> str:
    """The text of a table. `values`: by target, what it names, and the classes that override it."""
    codes = (code for value, _ in values.values() for code in _codes_of(value))
    files = {file for file in map(_file_of, codes) if file}
    lines = [
        *(f"file {_short(path)} {_file_hash(path)}" for path in sorted(files)),
        *(f"hook {target} {_text_of(*value)}" for target, value in sorted(values.items())),
    ]
    return "\n".join(lines) + "\n"


def is_same(value: Any, overridden: list[str], known: str, checked: Checked) -> bool:
    """Whether the code that a target names is the code that was checked.

    Also True if the name is right and the code has no source file. `overridden` are the classes
    that override the function; `known` is the row of the target in the table.
    """
    codes = list(_codes_of(value))
    if not codes or known == _NO_CODE:
        return not codes and known == _NO_CODE
    name, _, *others = known.split()
    if name != _name_of(value) or others != overridden:
        return False
    files = {_file_of(code) for code in codes}
    if None in files:
        return True
    if all(checked.files.get(_short(f)) == _file_hash(f) for f in files if f):
        return True
    return known == _text_of(value, overridden)


def _text_of(value: Any, overridden: list[str]) -> str:
    codes = list(_codes_of(value))
    return " ".join([_name_of(value), _hash_of(codes), *overridden]) if codes else _NO_CODE


def _name_of(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__name__))


def _plain(value: Any) -> Any:
    """The function behind `functools.cache`. A wrapper written in Python is returned as it is."""
    return value if hasattr(value, "__code__") else getattr(value, "__wrapped__", value)


def _codes_of(value: Any) -> Iterator[types.CodeType]:
    """The code of a function, or of the methods that a class of torch itself defines."""
    if isinstance(value, type):
        for _, member in sorted(vars(value).items()):
            codes = _codes_of(getattr(member, "__func__", member))
            yield from (code for code in codes if _IN_TORCH in code.co_filename)
        return
    code = getattr(_plain(value), "__code__", None)
    if isinstance(code, types.CodeType) and not code.co_filename.startswith("<"):
        yield code


def _file_of(code: types.CodeType) -> str | None:
    return code.co_filename if Path(code.co_filename).is_file() else None


def _short(path: str) -> str:
    """The name of a file within torch."""
    return path.rpartition(_IN_TORCH)[2]


@functools.cache
def _file_hash(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def _hash_of(codes: list[types.CodeType]) -> str:
    trees = (ast.parse(textwrap.dedent(inspect.getsource(code))) for code in codes)
    return hashlib.sha256(repr([_shape(tree) for tree in trees]).encode()).hexdigest()[:16]


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
