"""Installs packages of kernels for this process, and removes them when the process ends."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from npugx_cache import config
from npugx_cache.backend.capture import device as capture_device
from npugx_cache.backend.static_kernels import tool
from npugx_cache.interpreter.forks import survive_forks
from npugx_cache.private import npu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npugx_cache.backend.static_kernels.packages import Packages
    from npugx_cache.backend.static_kernels.wanted import Wanted

_OWN = "npugx-installed-"
_AT_EXIT = 10.0  # seconds that an ending process waits for CANN's lock before it gives up
_YOUNG = 3600.0  # seconds; a younger folder may belong to a process that has not locked it yet


class Installed:
    """The packages that this process uses.

    From CANN 9.1 on, each process installs packages in a folder of its own. Before CANN 9.1, all
    processes share CANN's folder: a process that uses a package holds a shared lock on the
    package's folder, and the last of them uninstalls the package when it ends. If that process is
    killed, the package stays, and CANN goes on choosing its kernels for other processes, as CANN
    documents for a process that ends abnormally.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        survive_forks(self, "_lock")
        self._own: Path | None = None
        self._owner = 0
        self._packages: set[str] = set()
        self._operators: dict[tuple[tuple[str, str], ...], set[str]] = {}
        self._shared: dict[Path, int] = {}

    def has(self, wanted: Wanted) -> bool:
        """Whether this process has installed kernels for all of these operators."""
        with self._lock:
            return wanted.operators.digests <= self._operators.get(wanted.surroundings, set())

    def install(self, packages: Packages, wanted: Wanted) -> str:
        """Install packages and select their kernels; return why that failed, or ""."""
        with self._lock:
            for name, data in packages.items():
                digest = hashlib.sha256(data).hexdigest()
                failure = "" if digest in self._packages else self._install(name, data)
                if failure:
                    return failure
                self._packages.add(digest)
            with capture_device.capturing:
                npu.select_static_kernels(str(self._own) if self._own is not None else None)
            self._operators.setdefault(wanted.surroundings, set()).update(wanted.operators.digests)
        return ""

    def _install(self, name: str, data: bytes) -> str:
        # In a folder that only this user can write to, so that nobody can replace the verified
        # package before it runs.
        with tempfile.TemporaryDirectory(prefix="npugx-kernels-") as folder:
            path = Path(folder) / name
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
            with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
                file.write(data)
            quiet = ["-q"] if npu.is_cann_from("9.1.0") else []
            if npu.has_kernel_folders():
                where = f"--install-path={self._own_folder()}"
                return tool.run([str(path), where, *quiet], f"installing {name}")
            return self._install_for_all(path, quiet)

    def _own_folder(self) -> Path:
        if self._own is None or self._owner != os.getpid():
            _remove_abandoned()
            self._own, self._owner = Path(tempfile.mkdtemp(prefix=_OWN)), os.getpid()
            with contextlib.suppress(OSError):
                # Held until the process ends. A folder without a lock belongs to a killed process.
                _try(os.open(self._own, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_EX)
            atexit.register(self._uninstall)
        return self._own

    def _install_for_all(self, path: Path, quiet: list[str]) -> str:
        home = config.cann_home()
        if home is None:
            return "ASCEND_HOME_PATH does not say where CANN is"
        wait = config.static_kernel_wait()
        with _locked(home, wait) as alone:
            if not alone:
                return f"another process has been installing for {wait:g} s"
            place = _place(home, path.stem)
            if place is not None and self._share(place, only_if_used=True):
                return ""
            failure = tool.run([str(path), *quiet], f"installing {path.name}")
            place = _place(home, path.stem)
            if not failure and place is not None:
                self._share(place)
            return failure

    def _share(self, place: Path, *, only_if_used: bool = False) -> bool:
        """Take the shared lock on an installed package; return whether this process has the lock.

        only_if_used: refuse a package that no process holds, because it may be the remains of an
        installation that was killed.
        """
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        if only_if_used and _try(descriptor, fcntl.LOCK_EX):
            os.close(descriptor)
            return False
        if not _try(descriptor, fcntl.LOCK_SH):
            os.close(descriptor)
            return False
        if not self._shared:
            self._owner = os.getpid()
            atexit.register(self._uninstall)
        self._shared[place] = descriptor
        return True

    def _uninstall(self) -> None:
        if self._owner != os.getpid():  # a forked child must not remove its parent's packages
            return
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
        home = config.cann_home()
        if not self._shared or home is None:
            return
        with contextlib.suppress(OSError), _locked(home, _AT_EXIT) as alone:
            for place, descriptor in self._shared.items():
                with contextlib.suppress(OSError):
                    same = os.path.samestat(place.stat(), os.fstat(descriptor))
                    if alone and same and _try(descriptor, fcntl.LOCK_EX):
                        tool.run([str(place / "uninstall.sh")], f"uninstalling {place.name}")


def _remove_abandoned() -> None:
    """Remove the folders of processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_OWN}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG:
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _try(descriptor, fcntl.LOCK_EX):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def _locked(home: Path, wait: float) -> Iterator[bool]:
    """Lock CANN's folder, so that one process at a time installs or uninstalls there.

    Yields False if the lock was not free within `wait` seconds. Raises OSError if the file system
    has no locks, as some network file systems.
    """
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        until = time.monotonic() + wait
        while not (alone := _try(descriptor, fcntl.LOCK_EX)) and time.monotonic() < until:
            time.sleep(0.05)
        yield alone
    finally:
        os.close(descriptor)


def _try(descriptor: int, kind: int) -> bool:
    """Try to take a lock; return whether it was free. Raises OSError if there are no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _place(home: Path, name: str) -> Path | None:
    """The folder of a package in this release of CANN or in one beside it; None if not there."""
    inside = f"opp/static_kernel/ai_core/{name}"
    own = home / inside
    if (own / "uninstall.sh").is_file():
        return own
    beside = sorted(home.parent.glob(f"*/{inside}/uninstall.sh"))
    return beside[0].parent if beside else None


INSTALLED = Installed()
