"""Writes the readable text of an entry, and reads such texts from a store. Imports no torch."""

from __future__ import annotations

import contextlib
import dis
import io
import os
import re
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from npugx_cache import config
from npugx_cache.backend.codegen import operator_names
from npugx_cache.backend.program import HIGHER_ORDER
from npugx_cache.conditions import Step
from npugx_cache.entry.artifact import (
    BINDINGS,
    CONDITIONS,
    PROGRAM,
    READABLE,
    Bindings,
    conditions_of,
    other_release,
    program_of,
)
from npugx_cache.entry.break_record import BreakRecord
from npugx_cache.entry.frame import GRAPH, SHIM, load
from npugx_cache.entry.view import sections, stored_text
from npugx_cache.errors import CorruptEntry, EntryNotFound, StoreError
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.portable import describe, devices
from npugx_cache.terminal import harmless, in_utf8, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from npugx_cache import store
    from npugx_cache.backend.program import Program
    from npugx_cache.conditions import Conditions
    from npugx_cache.entry.frame import Frame
    from npugx_cache.entry.view.page import Stored
    from npugx_cache.portable import Plain


_NO_FRAME = "none: whoever traced the graph calls it"
_NOTES = {"bypass": "runs uncached", "set-up": "does something to a model first"}
_MOST_SHOWN = 32 << 20
_DEPTH = 4  # folders between a store's root and the file of an entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """What the readable text of an entry is made of. `code` is the text of `program`.

    `factors` are (name, value, span), `inputs` (name, description), and `passes` (name, number of
    rewrites, number of removed nodes, negative if nodes were added). `compiled` says what a
    compiler made of the program, if one did.
    """

    title: str
    factors: Iterable[tuple[str, str, str]]
    conditions: Conditions
    inputs: tuple[tuple[str, str], ...]
    passes: Iterable[tuple[str, int, int]]
    program: Program | None
    code: str
    frame: Frame | None
    compiled: str = ""


def render(parts: Readable) -> str:
    """The text of an entry. It is Python, so that editors colour it; nobody should run it."""
    from npugx_cache.conditions.kinds import lines  # loads torch, which a reader does not need

    texts = [
        f"# {one_line(parts.title)}",
        _heading(stored_text.KEY),
        _comment([f"{name} = {value}" for name, value, _ in sorted(parts.factors)]),
        _heading(stored_text.SOURCE),
        _comment(lines(parts.conditions, code=True)),
        _heading(stored_text.GUARDS),
        *_guards(parts.conditions),
        _heading(stored_text.PASSES),
        _comment(map(_pass_words, parts.passes)),
        _heading(stored_text.INPUTS),
        _comment([f"{name}: {described}" for name, described in parts.inputs]),
        _heading(stored_text.CODE),
        *(_program(parts.program, parts.code) if parts.program else ["# no tensor operations"]),
        *([_comment([parts.compiled])] if parts.compiled else []),
        _heading(stored_text.FRAME),
        _comment(_frame(parts.frame) if parts.frame else [_NO_FRAME]),
    ]
    return "\n".join(texts) + "\n"


def readable_cache(
    entry: str | os.PathLike[str],
    print_output: bool = True,
    file: str | os.PathLike[str] | None = None,
    *,
    section: str = sections.ALL,
    cache_dir: str | os.PathLike[str] | None = None,
) -> str:
    """The readable text of an entry. `entry` is an id, a unique prefix of an id, or a path.

    `section` is one of "overview" (what the command line shows: a file that runs), "summary",
    "graph", "guards", "key", "source", "passes", "inputs", "code", "frame" and "all".
    Prints the text unless `print_output` is false, and writes the text to `file` if one is given.
    Raises EntryNotFound, CorruptEntry, or StoreError if the folder can't be used; ValueError for
    an unknown section. Control characters are replaced, because a stranger may have written a text
    that goes to a terminal.
    """
    if section not in sections.SECTIONS:
        raise ValueError(f"section {section!r} is none of {', '.join(sections.SECTIONS)}")
    text = in_utf8(harmless(_text_of(entry, section, cache_dir)))
    if file is not None:
        Path(file).write_text(text, encoding="utf-8")
    if print_output:
        sys.stdout.write(text)
    return text


def _text_of(
    entry: str | os.PathLike[str], section: str, cache_dir: str | os.PathLike[str] | None
) -> str:
    from npugx_cache import store

    name, root = _name_and_root(entry, cache_dir)
    # Reading must not create a store, and must work while the cache is switched off.
    settings = replace(config.load(cache_dir=root), mode="readonly")
    opened = store.open_store(settings)
    if isinstance(opened, store.Unusable):
        raise StoreError(opened.reason)
    manifest = opened.find(name)
    if isinstance(manifest, store.Miss):
        raise EntryNotFound(f"{name!r} in {opened.root}: {manifest.reason}")
    if manifest.kind in _NOTES:
        function, reason = (str(manifest.about.get(name)) for name in ("function", "reason"))
        told = [f"{function} {_NOTES[manifest.kind]}:", reason]
        record = BreakRecord.of(opened.read_record(manifest.entry))
        if record.pieces:
            told += ["With fullgraph=None it runs in pieces, which have these entries:"]
            told += record.pieces
        return _comment(told) + "\n"

    from npugx_cache.entry.view import page  # a compile writes the stored text alone

    if section == sections.ALL:
        return page.to_be_read(_stored_text(opened, manifest))
    stored = decode_entry(opened, manifest)
    if isinstance(stored, str):
        return page.to_be_read(stored)
    with _at_fault(manifest):
        return page.page(stored, section)


def decode_entry(opened: store.Store | store.FolderStore, manifest: store.Manifest) -> Stored | str:
    """What an entry with a graph holds; a text whose parts are not known is given as it is.

    Raises `CorruptEntry`.
    """
    from npugx_cache.entry.view import page

    text = _stored_text(opened, manifest)
    if made := other_release(manifest.factors):
        return f"{_comment([f'As it was stored: {made}.'])}\n{text}"
    parts = stored_text.parse_text(text)
    if parts is None:
        return text
    has_program = any(ref.name == PROGRAM for ref in manifest.blobs)
    blobs = _read(opened, manifest, CONDITIONS, BINDINGS, *([PROGRAM] if has_program else []))
    with _at_fault(manifest):
        return page.Stored(
            entry=manifest.entry,
            created=manifest.created,
            seconds=manifest.cost_seconds,
            text=parts,
            program=program_of(blobs).placed(devices.at(None)) if has_program else None,
            bindings=Bindings.unpack(blobs[BINDINGS]),
            conditions=conditions_of(blobs),
        )


@contextlib.contextmanager
def _at_fault(manifest: store.Manifest) -> Iterator[None]:
    """Raise `CorruptEntry` for any error: who wrote the entry may have put anything into it."""
    try:
        yield
    except CorruptEntry:
        raise
    except Exception as error:
        let_through(error)
        raise CorruptEntry(f"entry {manifest.entry[:12]}: {error!r}") from error


def _stored_text(opened: store.Store | store.FolderStore, manifest: store.Manifest) -> str:
    return harmless(_read(opened, manifest, READABLE)[READABLE].decode(errors="replace"))


def _read(
    opened: store.Store | store.FolderStore, manifest: store.Manifest, *names: str
) -> Mapping[str, bytes]:
    from npugx_cache.store import Miss

    size = sum(ref.logical_size for ref in manifest.blobs if ref.name in names)
    if size > _MOST_SHOWN:
        what = f"entry {manifest.entry[:12]} has {size} bytes to be shown"
        raise CorruptEntry(f"{what}, more than the {_MOST_SHOWN} of the largest models")
    blobs = opened.read(manifest, names)
    if isinstance(blobs, Miss):
        raise CorruptEntry(f"entry {manifest.entry[:12]} in {opened.root}: {blobs.reason}")
    return blobs


def _name_and_root(
    entry: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None
) -> tuple[str, str | os.PathLike[str] | None]:
    """The id and the store's root, from the path of an entry: <root>/v1/ac/<aa>/<key>/<entry>.

    Anything without a slash is an id already.
    """
    text = os.fspath(entry)
    if os.sep not in text:
        return text, cache_dir
    path = Path(text).absolute()
    if len(path.parents) <= _DEPTH:
        raise EntryNotFound(f"{text} is not the path of an entry: <root>/v1/ac/<aa>/<key>/<entry>")
    return path.name, path.parents[_DEPTH]


def _pass_words(report: tuple[str, int, int]) -> str:
    name, rewrites, removed = report
    change = f"{removed} nodes removed" if removed >= 0 else f"{-removed} nodes added"
    return f"{name}: {rewrites} rewrites, {change}"


def _guards(conditions: Conditions) -> Iterator[str]:
    from npugx_cache.conditions.kinds import lines

    first, *others = lines(conditions, code=False)
    yield "def guards_hold() -> bool:"
    yield "    return ("
    yield f"        {first}"
    yield from (f"        and {line}" for line in others)
    yield "    )"


def _program(program: Program, code: str) -> Iterator[str]:
    names = zip(operator_names(program), program.operators, strict=True)
    for name, operator in names:
        if operator.namespace == HIGHER_ORDER:
            target = f"torch.ops.{HIGHER_ORDER}.{operator.name}"
        elif operator.namespace:
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
    yield code.rstrip()


def _frame(caller: Frame) -> Iterator[str]:
    for name, data in caller.names.items():
        yield f"{name} is {_name_words(data)}"
    out = io.StringIO()
    dis.dis(_without_lines(load(caller.code)), file=out, depth=3)
    yield from re.sub(r" at 0x[0-9a-f]+", "", out.getvalue()).splitlines()


def _without_lines(code: types.CodeType) -> types.CodeType:
    """The code without line numbers, so that the text stays equal if only lines move."""
    constants = (
        _without_lines(constant) if isinstance(constant, types.CodeType) else constant
        for constant in code.co_consts
    )
    return code.replace(co_consts=tuple(constants), co_firstlineno=1, co_linetable=b"")


def _name_words(data: Plain) -> str:
    if data == GRAPH:
        return "forward"
    kind, arg = data
    if kind == SHIM:
        return f"a stand-in for {arg}"
    return f"{Step(kind).name.lower().replace('_', ' ')} {describe(arg) if arg else ''}".rstrip()


def _heading(text: str) -> str:
    return f"\n\n{stored_text.MARK}{text}"


def _comment(lines: Iterable[str]) -> str:
    return "\n".join(f"# {one_line(line)}".rstrip() for line in lines) or "# none"
