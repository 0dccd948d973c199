"""Real folders under tmp_path; the user's own state folder is never touched."""

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
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    return home


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def open_at(root: Path) -> Callable[..., Store]:
    def opening(path: Path = root, **settings: Any) -> Store:
        store = open_store(Settings(cache_dir=path, **settings))
        assert isinstance(store, Store), store
        return store

    return opening


@pytest.fixture
def store(open_at: Callable[..., Store]) -> Store:
    return open_at()


@pytest.fixture
def draft() -> Callable[..., Draft]:
    def make(number: int = 0, **changes: Any) -> Draft:
        values: dict[str, Any] = {
            "key": f"{number:064x}",
            "identity": "1d" * 16,
            "kind": "graph",
            "cost_seconds": 0.1,
            "factors": (("torch", "2.13", "process"),),
            "about": {"function": f"f{number}"},
            "blobs": {"program": b"p%d " % number * 1000, "text": os.urandom(64)},
        }
        return Draft(**{**values, **changes})

    return make


@pytest.fixture
def publish(draft: Callable[..., Draft]) -> Callable[..., Any]:
    def publishing(store: Store, number: int = 0, **changes: Any) -> Any:
        answer = store.publish(draft(number, **changes))
        assert isinstance(answer, Published), answer
        return answer.manifest

    return publishing


@pytest.fixture
def python() -> Callable[..., subprocess.Popen[str]]:
    """Start a Python program in another process, with this checkout first on its path."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *args: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, *map(str, args)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
