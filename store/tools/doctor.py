"""Tests whether a folder supports what a store needs, by trying it with a second process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, cast

from npugx_cache.store.content.opening import folder_of, prepare_folder
from npugx_cache.store.io import syscalls
from npugx_cache.store.io.filesystem import LOCAL, LOST_AT_A_RESTART, NETWORK
from npugx_cache.store.results import Unusable
from npugx_cache.store.tools import probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npugx_cache.config import Settings

Verdict = Literal["ok", "warning", "bad"]

_LEAST_FREE = 1 << 30
_MOST_SKEW = 2.0
_TAKEOVER = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one test. `detail` says what was found and, if not ok, what follows from it."""

    name: str
    verdict: Verdict
    detail: str


def examine(settings: Settings) -> Iterator[Finding]:
    """Test the cache folder of the settings. Files are written only in a temporary folder in it."""
    yield from _trust(settings)
    root = str(settings.cache_dir)
    try:
        yield _filesystem(root)
        yield _space(root)
    except OSError as error:
        yield Finding(name="folder", verdict="bad", detail=f"{root}: {error.strerror}")
        return
    place = f"{root}/.doctor-{syscalls.random_name()}"
    try:
        syscalls.mkdir(place, 0o700)
    except OSError as error:
        detail = f"nothing can be written: {error.strerror}; hits work, nothing is stored"
        yield Finding(name="write", verdict="warning", detail=detail)
        return
    try:
        with _other_process() as other:
            yield _clock(place)
            yield _rename(place, other)
            yield _exclusive(place, other)
            yield from _locks(place, other)
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding(name="probe", verdict="bad", detail=f"stopped: {error}")
    finally:
        _clear(place)


def _trust(settings: Settings) -> Iterator[Finding]:
    folder = folder_of(settings)
    signing = f"trust is {settings.trust}"
    if isinstance(folder, Unusable):
        yield Finding(name="signing", verdict="bad", detail=folder.reason)
        return
    if settings.trust == "signed":
        signing = f"entries are signed and verified with the key in {settings.key_file}"
    yield Finding(name="signing", verdict="ok", detail=signing)
    prepared = prepare_folder(folder.look_only("doctor changes nothing"))
    if isinstance(prepared, Unusable):
        yield Finding(name="permissions", verdict="bad", detail=prepared.reason)
    else:
        detail = f"owner and modes are as trust={settings.trust} asks"
        yield Finding(name="permissions", verdict="ok", detail=detail)


def _filesystem(root: str) -> Finding:
    magic = syscalls.filesystem_magic(root)
    if magic in NETWORK:
        detail = (
            f"{NETWORK[magic]}: shared by hosts. Locks may work only within a host: hosts then "
            "repeat work, and nothing goes wrong. NPUGX_CACHE_LOCAL_DIR puts a local folder before "
            "this one"
        )
        return Finding(name="file system", verdict="warning", detail=detail)
    kind = LOCAL.get(magic, f"unknown ({magic:#x})")
    if kind in LOST_AT_A_RESTART:
        return Finding(name="file system", verdict="warning", detail=f"{kind}: gone at a reboot")
    return Finding(name="file system", verdict="ok", detail=kind)


def _space(root: str) -> Finding:
    free = syscalls.free_bytes(root)
    verdict: Verdict = "ok" if free >= _LEAST_FREE else "warning"
    return Finding(name="free space", verdict=verdict, detail=f"{free / 1e9:.1f} GB")


def _clock(place: str) -> Finding:
    path = f"{place}/clock"
    before = time.time()
    _write(path, b"")
    after = time.time()
    stamp = syscalls.lstat(path).st_mtime
    # The kernel stamps files with a clock that ticks every few milliseconds.
    skew = max(before - stamp, stamp - after, 0.0)
    if skew <= _MOST_SKEW:
        return Finding(name="clock", verdict="ok", detail=f"file times differ by {skew:.3f} s")
    detail = f"file times differ from this host's by {skew:.1f} s, and so does eviction by age"
    return Finding(name="clock", verdict="warning", detail=detail)


def _rename(place: str, other: _Other) -> Finding:
    old, new = f"{place}/old", f"{place}/new"
    _write(old, b"old")
    _write(new, b"new")
    syscalls.rename(new, old)
    with contextlib.suppress(OSError):
        syscalls.fsync_path(place)
    seen = other.ask("read", old)
    if seen == "new":
        detail = "a file is replaced whole, and another process sees it at once"
        return Finding(name="rename", verdict="ok", detail=detail)
    detail = f"another process saw {seen!r} after a rename: work is repeated, nothing goes wrong"
    return Finding(name="rename", verdict="warning", detail=detail)


def _exclusive(place: str, other: _Other) -> Finding:
    path = f"{place}/exclusive"
    _write(path, b"")
    seen = other.ask("create", path)
    if seen == "no":
        detail = "O_EXCL excludes another process"
        return Finding(name="exclusive creation", verdict="ok", detail=detail)
    detail = f"O_EXCL did not exclude another process ({seen}): temporary files could be mixed up"
    return Finding(name="exclusive creation", verdict="bad", detail=detail)


def _locks(place: str, other: _Other) -> Iterator[Finding]:
    path = f"{place}/lock"
    held: dict[str, int] = {}
    mine = probe.answer("lock", path, held)
    theirs = other.ask("lock", path)
    for fd in held.values():
        syscalls.close(fd)
    after = other.ask("lock", path)
    if (mine, theirs, after) != ("yes", "no", "yes"):
        detail = (
            f"flock does not exclude another process (here {mine}, there {theirs}, after the "
            f"release {after}): each worker compiles for itself, and nothing goes wrong"
        )
        yield Finding(name="locks", verdict="warning", detail=detail)
        return
    yield Finding(name="locks", verdict="ok", detail="flock excludes another process of this host")
    other.kill()
    started = time.monotonic()
    again: dict[str, int] = {}
    while probe.answer("lock", path, again) != "yes" and time.monotonic() < started + _TAKEOVER:
        time.sleep(0.002)
    took = time.monotonic() - started
    for fd in again.values():
        syscalls.close(fd)
    verdict: Verdict = "ok" if took < _TAKEOVER else "warning"
    detail = f"the lock of a killed process was free after {took * 1e3:.0f} ms"
    yield Finding(name="takeover", verdict=verdict, detail=detail)


class _Other:
    """The second process, which runs `probe`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, request: str, path: str) -> str:
        requests = cast("IO[str]", self._process.stdin)
        requests.write(probe.as_line(request, path))
        requests.flush()
        return cast("IO[str]", self._process.stdout).readline().rstrip("\n")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def _other_process() -> Iterator[_Other]:
    process = subprocess.Popen(  # noqa: S603  # our own interpreter and our own file
        [sys.executable, "-I", str(Path(probe.__file__).resolve())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield _Other(process)
        finally:
            process.kill()


def _write(path: str, data: bytes) -> None:
    fd = syscalls.open_new(path, 0o600)
    try:
        syscalls.write_all(fd, data)
        syscalls.fsync(fd)
    finally:
        syscalls.close(fd)


def _clear(place: str) -> None:
    for name in ("clock", "old", "new", "exclusive", "lock"):
        with contextlib.suppress(OSError):
            syscalls.unlink(f"{place}/{name}")
    with contextlib.suppress(OSError):
        syscalls.rmdir(place)
