"""Artifact -> one readable Python file, and the way to read it back from a store. No torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from npugx_cache import config
from npugx_cache.artifact import READABLE
from npugx_cache.backend.codegen import operator_names, source_text
from npugx_cache.errors import CorruptEntry, EntryNotFound, StoreError
from npugx_cache.guards.wording import Wording

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Iterator

    from npugx_cache.artifact import Conditions
    from npugx_cache.backend.program import Program


_DEPTH = 4  # folders between a store's root and the file of an entry


def render(
    title: str,
    factors: Iterable[tuple[str, str, str]],
    conditions: Conditions,
    program: Program | None,
    caller: types.CodeType,
    passes: Iterable[tuple[str, int]],
) -> str:
    """The text of an entry. It is Python, so that editors colour it; it is not meant to be run."""
    sections = [
        _comment([title]),
        _heading("What the entry was made for (a change of any of these is a miss)"),
        "\n".join(f"# {name} = {value}" for name, value, _ in sorted(factors)),
        _heading("Source that the trace went through"),
        "\n".join(f"# {f.kind} {f.module}.{f.name}  {f.hash}" for f in conditions.facts)
        or "# none",
        _guards(conditions),
        _heading("Passes, and how many nodes each removed"),
        "\n".join(f"# {name}: {removed}" for name, removed in passes) or "# none",
        *(_program(program) if program else ["# The function has no tensor operations."]),
        _heading(
            "Caller frame: reads the inputs, calls forward, rebuilds outputs and side effects"
        ),
        _comment(_disassembly(caller)),
    ]
    return "\n".join(sections) + "\n"


def readable_cache(
    entry: str | os.PathLike[str],
    print_output: bool = True,
    file: str | os.PathLike[str] | None = None,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
) -> str:
    """The readable text of an entry, given by id, by a unique prefix of it, or by its path.

    Prints it unless `print_output` is false and writes it to `file` if one is given. Raises
    EntryNotFound, CorruptEntry, or StoreError when the folder can't be used.
    """
    text = _text_of(entry, cache_dir)
    if file is not None:
        Path(file).write_text(text, encoding="utf-8")
    if print_output:
        sys.stdout.write(text)
    return text


def _text_of(entry: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None) -> str:
    from npugx_cache import store

    name, root = _name_and_root(entry, cache_dir)
    opened = store.open_store(config.load(cache_dir=root))
    if isinstance(opened, store.Unusable):
        raise StoreError(opened.reason)
    manifest = opened.find(name)
    if isinstance(manifest, store.Miss):
        raise EntryNotFound(f"{name!r} in {opened.root}: {manifest.reason}")
    if manifest.kind == "bypass":
        function, reason = (str(manifest.about.get(name)) for name in ("function", "reason"))
        return _comment([f"{function} runs uncached:", reason]) + "\n"
    blobs = opened.read(manifest, [READABLE])
    if isinstance(blobs, store.Miss):
        raise CorruptEntry(f"entry {manifest.entry[:12]} in {opened.root}: {blobs.reason}")
    return blobs[READABLE].decode(errors="replace")


def _name_and_root(
    entry: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None
) -> tuple[str, str | os.PathLike[str] | None]:
    """An entry's path is <root>/v1/ac/<aa>/<key>/<entry>."""
    text = os.fspath(entry)
    if os.sep not in text:
        return text, cache_dir
    path = Path(text).absolute()
    if len(path.parents) <= _DEPTH:
        raise EntryNotFound(f"{text} is not the path of an entry: <root>/v1/ac/<aa>/<key>/<entry>")
    return path.name, path.parents[_DEPTH]


def _guards(conditions: Conditions) -> str:
    checks = list(Wording(conditions.guards).lines())
    body = "\n".join(f"        and {line}" for line in checks[1:])
    first = checks[0] if checks else "True"
    return (
        f"{_heading('Guards: what must hold for the graph to be valid')}\n"
        f"def guards_hold() -> bool:\n    return (\n        {first}\n{body}\n    )"
    )


def _program(program: Program) -> Iterator[str]:
    yield _heading("Graph")
    names = zip(operator_names(program), program.operators, strict=True)
    for name, operator in names:
        if operator.namespace:
            target = (
                f"torch.ops.{operator.namespace}.{operator.name}.{operator.overload or 'default'}"
            )
        else:
            target = operator.name
        yield f"{name} = {target}"
    for constant in program.constants:
        yield (
            f"{constant.name}: torch.Tensor  # {constant.dtype}{list(constant.size)}, "
            f"stride {list(constant.stride)}, on {constant.device}"
        )
    yield ""
    yield source_text(program).rstrip()


def _disassembly(code: types.CodeType) -> list[str]:
    import dis
    import io

    out = io.StringIO()
    dis.dis(code, file=out, depth=3)
    return out.getvalue().splitlines()


def _heading(text: str) -> str:
    return f"\n\n# ---- {text}"


def _comment(lines: Iterable[str]) -> str:
    return "\n".join(f"# {line}".rstrip() for line in lines)
