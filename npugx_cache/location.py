"""Describes places in the user's code, in words that are the same on every host.

A reason for a refusal names the construct, its place, and what to change.
"""

from __future__ import annotations

import functools
import re
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    import traceback
    import types
    from collections.abc import Iterable

_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>[^\n]+)\n\s*(.*)')
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")
"""The name of the function that Dynamo makes of what follows a graph break in another one."""
_MAX_CODE = 100


class Place(NamedTuple):
    """One line of one function; `code` is the line's text, or "" if there is no source.

    `caller` is the line of the user's own code that led to a line of an installed package.
    """

    file: str
    line: int
    function: str
    code: str
    caller: Place | None = None

    @property
    def is_installed(self) -> bool:
        """Whether the line is of an installed package, which a user can't edit."""
        return _is_installed(self.file)

    def __str__(self) -> str:
        code = f" (`{self.code[:_MAX_CODE]}`)" if self.code else ""
        caller = f", called {self.caller}" if self.caller is not None else ""
        return f"at {_portable_path(self.file)}:{self.line} in {self.function}{code}{caller}"


def reason(what: str, place: Place | None, change: str, why: str = "") -> str:
    """One line for the person who can change it: construct, place, why, and what to do instead."""
    where = f" {place}" if place is not None else ""
    because = f": {why.rstrip('.')}" if why else ""
    return f"{what}{where}{because}; to change that, {change}"


CACHE_A_PART = "cache a submodule that does not come by it"
IN_A_PACKAGE = (
    f"{CACHE_A_PART}, or pass fullgraph=None, which caches the parts before and after that line"
)
"""What to do about a line of an installed package, which a user can't edit. The submodule comes
first, because pieces are traced at every start."""


def without_pieces(reason: str) -> str:
    """A reason without that advice, for a function that runs in pieces already."""
    return reason.partition(f"; to change that, {CACHE_A_PART}")[0]


def of_code(code: types.CodeType) -> Place:
    """Where a function is written."""
    return Place(code.co_filename, code.co_firstlineno, code.co_qualname, "")


def innermost(places: Iterable[Place]) -> Place | None:
    """The innermost place outside of torch and Python, which a user can change, if there is one."""
    known = list(places)
    chosen = [place for place in known if not _is_covered(place.file)] or known
    if not chosen or not _is_installed(chosen[-1].file):
        return chosen[-1] if chosen else None
    own = [place for place in chosen if not _is_installed(place.file)]
    return chosen[-1]._replace(caller=own[-1] if own else None)


def of_frames(frames: Iterable[traceback.FrameSummary] | None) -> Place | None:
    """The innermost place of a stack; its outermost frame comes first."""
    return innermost(
        Place(
            frame.filename,
            frame.lineno or 0,
            _function_name(frame.name),
            (frame.line or "").strip(),
        )
        for frame in frames or ()
    )


def of_text(text: str | None) -> Place | None:
    """The innermost place of a stack in the text form that Python prints."""
    return innermost(
        Place(found["file"], int(found["line"]), _function_name(found["name"]), found[4].strip())
        for found in _FRAME.finditer(text or "")
    )


def _function_name(function: str) -> str:
    return _RESUMED.sub(r"\1", function.strip())


def lines_of_texts(texts: Iterable[str | None]) -> list[str]:
    """`package/file.py:12` for each stack, as `of_text` finds it; "" where a stack has no place.

    A graph has thousands of stacks, and few lines: what costs is done once for each file.
    """
    covered = functools.cache(_is_covered)
    portable = functools.cache(_portable_path)

    @functools.cache
    def line_of(text: str) -> str:
        found = [(frame["file"], frame["line"]) for frame in _FRAME.finditer(text)]
        own = (frame for frame in reversed(found) if not covered(frame[0]))
        file, line = next(own, found[-1] if found else ("", ""))
        return f"{portable(file)}:{line}" if file else ""

    return [line_of(text or "") for text in texts]


def is_of_this_package(error: BaseException) -> bool:
    """Whether the line that raised an exception is one of this package's own."""
    last, traceback = None, error.__traceback__
    while traceback is not None:
        last, traceback = traceback.tb_frame.f_code.co_filename, traceback.tb_next
    home = Path(is_of_this_package.__code__.co_filename).parent
    folders = (home, (home / "backend").resolve(), (home / "store").resolve())
    return last is not None and any(map(Path(last).is_relative_to, folders))


def _is_covered(file: str) -> bool:
    """Whether a file belongs to torch, torch_npu, this package or Python's standard library."""
    path = Path(file)
    for package in ("torch", "torch_npu", "npugx_cache"):
        root = getattr(sys.modules.get(package), "__file__", None)
        if root is not None and path.is_relative_to(Path(root).parent):
            return True
    return not _is_installed(file) and path.is_relative_to(sysconfig.get_path("stdlib"))


def _is_installed(file: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _portable_path(file: str) -> str:
    """The path below the folder of `sys.path`: the same in every checkout and environment."""
    path = Path(file)
    roots = [root for root in sys.path if isinstance(root, str)]  # some people put a Path there
    for root in sorted(roots, key=len, reverse=True):
        if root and path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return path.name
