"""Fresh processes for tests: cold and warm are never one process.

What takes seconds is done once for all tests of a run (`once`), also with several pytest workers.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from filelock import FileLock

sys.path.insert(0, str(Path(__file__).parent))

import sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPOSITORY = Path(__file__).parents[1]
PATIENCE = float(os.environ.get("NPUGX_TEST_PATIENCE", "1"))
"""How many times longer than on a usual machine a process may take: emulated, it is slow."""

# By default Hypothesis fails a test that takes long on a busy machine.
hypothesis.settings.register_profile(
    "no clock", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("no clock")


class Worker:
    """A started Python process that prints JSON on its last line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def result(self, timeout: float = 300) -> Any:
        out, err = self.process.communicate(timeout=timeout * PATIENCE)
        assert self.process.returncode == 0, err[-4000:]
        self.stderr = err
        assert out.strip(), err[-4000:]
        return json.loads(out.strip().splitlines()[-1])


class Surroundings:
    """The environment of one fleet of workers: a store and a state folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "cache"
        self._started: list[Worker] = []

    def environment(self, **changes: str | None) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("NPUGX_", "TORCH", "PYTHON", "COV_"))
            or name == "NPUGX_CACHE_UNTESTED_TORCH"  # set by tests/other_torch/run
        }
        kept |= {
            "NPUGX_CACHE_DIR": str(self.store),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
        }
        for name, value in changes.items():
            kept.pop(name, None)
            if value is not None:
                kept[name] = value
        return kept

    def start(self, *args: object, cwd: Path | None = None, **environment: str | None) -> Worker:
        process = subprocess.Popen(
            [sys.executable, *map(str, args)],
            cwd=cwd or self.folder,
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(Worker(process))
        return self._started[-1]

    def run(self, *args: object, cwd: Path | None = None, **environment: str | None) -> Any:
        return self.start(*args, cwd=cwd, **environment).result()

    def beside(self, name: str) -> Surroundings:
        """Surroundings with a store of their own, in a folder below."""
        other = Surroundings(self.folder / name)
        other.folder.mkdir()
        return other

    def close(self) -> None:
        """End what is still running."""
        for worker in self._started:
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.communicate()

    def listing(self) -> list[dict[str, Any]]:
        """The entries of the store as `npugx-cache ls` shows them."""
        listed = self.command("ls", "--format", "json")
        assert listed.returncode == 0, listed.stderr
        entries: list[dict[str, Any]] = json.loads(listed.stdout)["entries"]
        return entries

    def command(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run `npugx-cache` on the store."""
        return subprocess.run(
            [sys.executable, "-m", "npugx_cache", *args],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60 * PATIENCE,
            check=False,
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    drawn = [item for item in items if _is_drawn(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(drawn)])
    items[:] = drawn
    on_cuda = [item for item in items if item.get_closest_marker("cuda")]
    if on_cuda:
        import torch

        if not torch.cuda.is_available():
            for item in on_cuda:
                item.add_marker(pytest.mark.skip(reason="needs a GPU: no CUDA device is here"))


def _is_drawn(item: pytest.Item) -> bool:
    """Whether a test is of the sample (`sampling`): what is quick is, and all of the matrix."""
    file = item.path.relative_to(REPOSITORY).as_posix()
    is_long = item.get_closest_marker("thorough") is not None
    return not is_long or file.startswith("tests/soundness/") or sampling.is_drawn(file)


_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def own_store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test an empty store, made at its first use.

    In the store of the user or of another test, a test that counts what is stored finds a hit.
    """
    folder = tmp_path_factory.getbasetemp() / "stores" / str(next(_NUMBERS))
    monkeypatch.setenv("NPUGX_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    made = Surroundings(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session")
def only_quick(request: pytest.FixtureRequest) -> bool:
    """Whether no thorough test runs, so that what only thorough ones look at need not be made."""
    return bool(request.config.option.markexpr == "not thorough")


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Call `make(surroundings)` once in a whole test run, and hand out its JSON-like answer."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    shared = base / "once"
    shared.mkdir(exist_ok=True)

    def answer(name: str, make: Callable[[Surroundings], Any]) -> Any:
        done = shared / f"{name}.json"
        with FileLock(shared / f"{name}.lock"):
            if not done.exists():
                folder = shared / name
                folder.mkdir(exist_ok=True)
                surroundings = Surroundings(folder)
                try:
                    made = {"answer": make(surroundings)}
                except AssertionError as error:  # once is enough for that as well
                    made = {"error": str(error)}
                finally:
                    surroundings.close()
                done.write_text(json.dumps(made))
        made = json.loads(done.read_text())
        assert "error" not in made, made["error"]
        return made["answer"]

    return answer
