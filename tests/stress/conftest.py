"""Failpoints, real processes, and how long they run.

NPUGX_STRESS_SECONDS is the length of each endurance test (60 for a full run).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npugx_cache.config import Settings
from npugx_cache.store import Draft, FolderStore, open_folder
from npugx_cache.store.io import syscalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPOSITORY = Path(__file__).parents[2]
KEY = "ab" * 32
BLOBS = {"program": b"forward" * 400, "constants": bytes(range(256)) * 20, "text": b"x"}
_UNNUMBERED = {"is_regular", "is_folder", "random_name", "close"}
CALLS = [
    name
    for name, value in vars(syscalls).items()
    if callable(value)
    and getattr(value, "__module__", "") == syscalls.__name__
    and name not in _UNNUMBERED
]


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def seconds() -> float:
    return float(os.environ.get("NPUGX_STRESS_SECONDS", "6"))


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory where there is one: thousands of fsyncs would take minutes."""
    memory = Path("/dev/shm")
    base = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base, ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture
def opening(place: Path) -> Callable[..., FolderStore]:
    def make(name: str = "cache", **settings: Any) -> FolderStore:
        store = open_folder(Settings(cache_dir=place / name, **settings))
        assert isinstance(store, FolderStore), store
        return store

    return make


@pytest.fixture
def draft() -> Callable[..., Draft]:
    def make(**changes: Any) -> Draft:
        values: dict[str, Any] = {
            "key": KEY,
            "identity": "1d" * 16,
            "kind": "graph",
            "cost_seconds": 5.0,
            "factors": (("torch", "2.13", "process"),),
            "about": {"function": "f"},
            "blobs": BLOBS,
        }
        return Draft(**{**values, **changes})

    return make


class Failpoints:
    """Numbers the store's system calls and does something at the chosen one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.at = 0
        self.action: Callable[[], None] = lambda: None
        for name in CALLS:
            monkeypatch.setattr(syscalls, name, self._counted(getattr(syscalls, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count == self.at:
                self.action()
            return call(*args, **kwargs)

        return counted

    def arm(self, at: int, action: Callable[[], None]) -> None:
        self.count, self.at, self.action = 0, at, action

    def disarm(self) -> bool:
        """Tell whether the chosen call was reached."""
        reached = self.count >= self.at
        self.at = 0
        return reached

    def killed_at(self, at: int, work: Callable[[], object]) -> bool:
        """Run `work` in a child that kills itself with SIGKILL before call `at`."""
        child = os.fork()
        if child == 0:
            self.arm(at, lambda: os.kill(os.getpid(), signal.SIGKILL))
            try:
                work()
            except BaseException:
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in {0, -signal.SIGKILL}, code
        return code != 0


@pytest.fixture
def failpoints(monkeypatch: pytest.MonkeyPatch) -> Failpoints:
    return Failpoints(monkeypatch)


@pytest.fixture
def python() -> Callable[..., subprocess.Popen[str]]:
    """Start Python programs that are killed when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *args: object, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*options.pop("before", ()), sys.executable, "-c", code, *map(str, args)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
