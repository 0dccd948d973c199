from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npugx_cache.config import Settings
from npugx_cache.store import Draft, Published, Store, open_store

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NPUGX_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("NPUGX_CACHE", "NPUGX_CACHE_TRUST", "NPUGX_CACHE_MAX_SIZE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def filled(root: Path) -> Store:
    """Two graphs, the second hit three times, and a bypass."""
    store = open_store(Settings(cache_dir=root))
    assert isinstance(store, Store)
    for number in range(3):
        bypass = number == 2
        about: dict[str, Any] = {"function": f"model.Decoder.f{number}", "environment": "cpu x86"}
        about |= {"reason": "uses aten::rand"} if bypass else {"signature": f"f32[{number}, 16]"}
        answer = store.publish(
            Draft(
                key=f"{number:064x}",
                identity="1d" * 16,
                kind="bypass" if bypass else "graph",
                cost_seconds=20.0,
                factors=(),
                about=about,
                blobs={} if bypass else {"program": os.urandom(1000 * (number + 1))},
            )
        )
        assert isinstance(answer, Published)
        if number == 1:
            often = answer.manifest
    for _ in range(3):
        store.record_hit(often)
    store.flush()
    return store


@pytest.fixture
def publish(root: Path) -> Callable[..., str]:
    """Store one more entry without blobs under a key of one digit; returns its id."""
    store = open_store(Settings(cache_dir=root))
    assert isinstance(store, Store)

    def publishing(
        digit: str,
        *,
        kind: Any = "graph",
        cost_seconds: float = 1.0,
        factors: tuple[tuple[str, str, str], ...] = (),
        **about: str,
    ) -> str:
        answer = store.publish(
            Draft(
                key=digit * 64,
                identity="1d" * 16,
                kind=kind,
                cost_seconds=cost_seconds,
                factors=factors,
                about=about,
                blobs={},
            )
        )
        assert isinstance(answer, Published)
        return answer.manifest.entry

    return publishing


WITHOUT_TORCH = """
import runpy, sys
sys.modules["torch"] = None  # a command that imports torch ends in an ImportError
runpy.run_module("npugx_cache.cli", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def run() -> Callable[..., subprocess.CompletedProcess[str]]:
    def running(
        *args: object, cwd: Path = REPOSITORY, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", WITHOUT_TORCH, *map(str, args)],
            cwd=cwd,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return running


@pytest.fixture
def run_bytes() -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run a command whose input and output are bytes."""

    def running(*args: object, typed: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", WITHOUT_TORCH, *map(str, args)],
            cwd=REPOSITORY,
            input=typed,
            capture_output=True,
            timeout=60,
            check=False,
        )

    return running


@pytest.fixture
def on_terminal() -> Callable[..., tuple[int, str]]:
    """Run a command with a pseudo-terminal for its input and output."""

    def running(*args: object, typed: str = "", **environment: str) -> tuple[int, str]:
        import pty

        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "npugx_cache.cli", *map(str, args)],
            cwd=REPOSITORY,
            env={**os.environ, "TERM": "xterm-256color", **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        os.write(ours, typed.encode())
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # EIO: the other side is closed
                break
            if not part:
                break
            shown += part
        os.close(ours)
        return process.wait(timeout=60), shown.decode()

    return running
