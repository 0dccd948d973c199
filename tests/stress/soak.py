"""Workers that are killed, edited, pruned and cut off from their remote tier, for minutes.

`PYTHONPATH=. python tests/stress/soak.py --seconds 600 --processes 8` prints a table. The exit code
is 1 if a result was wrong, something raised, a worker hung, or the folder or Redis grew too large.

Each worker (`soak_worker.py`) loads the present version of a module, calls cached functions of the
module and compares each result with eager, again and again; then it ends, and another one starts.
Meanwhile the module is replaced by other versions, workers are killed with SIGKILL,
`npugx-cache prune` runs, the folder and Redis are emptied, and a proxy before Redis inflicts what a
bad network does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

sys.path.insert(0, str(Path(__file__).parents[1] / "remote"))

import servers
from proxy import Fault, Proxy

from npugx_cache.store.format.signing import new_secret
from tests.conftest import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKER = Path(__file__).with_name("soak_worker.py")
VERSIONS = range(10, 22)  # as many digits each, so that an edit changes no size
LOCK_WAIT = 30
HANG = 60 + LOCK_WAIT
"""Seconds without a line of a worker after which the worker hangs."""
START = 180
"""The same for a worker that has to import torch, beside others, first."""
KEPT = 200_000  # the graphs of all versions take five times as much
"""What `prune` leaves in the folder."""
LIMIT = 2 * KEPT
"""The limit that workers keep by themselves."""
LARGEST_FOLDER = 2 * LIMIT
"""Entries up to the limit, one more of each worker, locks, and what killed writers left."""
LARGEST_STATE = 8 << 20
"""A table of uses, which has 4 MB from the start, the journal, and the index."""
REDIS_LIMIT = 2 << 20
LARGEST_REDIS = 2 * REDIS_LIMIT
"""Redis evicts objects down to its limit, and has buffers of connections besides."""
EVERY = {"kill": 8.0, "edit": 2.0, "prune": 4.0, "fault": 5.0, "clear": 20.0}
"""How many seconds lie between two of a kind, in the mean."""
COUNTED = (
    *("calls", "compiles", "hits", "remote hits", "bypasses", "restarts", "kills", "edits"),
    *("prunes", "clears", "faults injected", "wrong", "exceptions", "hangs"),
    *("largest folder", "largest state", "largest Redis"),
)
_SHOWN = 10

_SOURCE = """
import torch
from torch import nn

VERSION = {version}
SCALE = {version}
SETTINGS = {{"by": {version}}}
NAMES = ["product", "calls_helper", "reads_settings", "repeats", "made", "Model"]


def helper(x):
    return torch.{activation}(x) * {version} + SCALE


def product(x):
    return torch.{activation}(x @ x.T) - {version}


def calls_helper(x):
    return helper(x).sin()


def reads_settings(x):
    return x * SETTINGS["by"] - SCALE


def repeats(x):
    for _ in range({times}):
        x = helper(x).cos()
    return x


def _make(number):
    def made(x):
        return x.sum(0) / number + SCALE

    return made


made = _make({version})


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed({version})
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)
        self.by = {version}

    def forward(self, x):
        return self.second(torch.{activation}(self.first(x))) * self.by + SCALE
"""


def source(version: int) -> str:
    """The module whose results are those of this version."""
    activation = ("relu", "tanh")[version % 2]
    return _SOURCE.format(version=version, activation=activation, times=version % 3 + 1)


class Worker:
    """One place for a worker; a worker that has ended is followed by another one."""

    def __init__(self, start: Callable[[int], subprocess.Popen[str]], soak: Soak) -> None:
        self._start, self._soak = start, soak
        self._seen: dict[str, int] = {}
        self.begin()

    def begin(self) -> None:
        self._seen = {}
        self.killed, self.busy, self.ending = False, False, False
        self.last = time.monotonic()
        self.process = self._start(self._soak.rng.randrange(1 << 30))
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                told = json.loads(line)
            except ValueError:
                if not self.killed:
                    self._soak.found("exceptions", f"a worker prints {line!r}")
                continue
            self.last, self.busy = time.monotonic(), True
            for name, number in told["counts"].items():
                self._soak.add(name, number - self._seen.get(name, 0))
            self._seen = told["counts"]
            for kind in ("wrong", "exception"):
                if kind in told:
                    self._soak.found({"wrong": "wrong"}.get(kind, "exceptions"), told[kind])

    def kill(self) -> None:
        self.killed = True
        self.process.kill()

    def end(self) -> None:
        """Ask the worker to end, which it does between two steps."""
        self.ending = True
        self.process.terminate()

    def look(self) -> bool:
        """Whether the worker runs; notes how it ended, or that it hangs."""
        quiet = time.monotonic() - self.last
        if self.process.poll() is None and quiet > (HANG if self.busy else START):
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            self.kill()
            self.process.wait()
            self._soak.found("hangs", f"no line for {quiet:.0f} s:\n{self._errors()}")
        if self.process.poll() is None:
            return True
        self._reader.join(30)
        # An interpreter that ends has no handler of a signal any more.
        was_asked = self.killed or (self.ending and self.process.returncode == -signal.SIGTERM)
        if self.process.returncode != 0 and not was_asked:
            ended = f"a worker ended with {self.process.returncode}:\n{self._errors()}"
            self._soak.found("exceptions", ended)
        return False

    def _errors(self) -> str:
        return Path(f"{self._soak.folder}/stderr-{self.process.pid}").read_text()[-6000:]


class Soak:
    """The workers, what happens to them, and what came of it."""

    def __init__(self, folder: Path, processes: int, seed: int) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        self.counts = dict.fromkeys(COUNTED, 0)
        self.texts: list[str] = []
        self._mutex = threading.Lock()
        self._processes = processes
        self._surroundings = Surroundings(folder)
        self._path = folder / "code/workload.py"
        self._path.parent.mkdir()
        self._command: subprocess.Popen[str] | None = None
        self._command_began = 0.0

    def add(self, name: str, number: int = 1) -> None:
        with self._mutex:
            self.counts[name] += number

    def found(self, name: str, text: str) -> None:
        self.add(name)
        self.texts.append(f"{name}: {text}")

    def run(self, seconds: float) -> None:
        """The seconds count from the first call on."""
        with contextlib.ExitStack() as stack:
            redis = ("--maxmemory", str(REDIS_LIMIT), "--maxmemory-policy", "allkeys-lru")
            self._redis = stack.enter_context(servers.redis(self.folder, *redis))
            self._proxy = Proxy(self._redis)
            stack.callback(self._proxy.close)
            self._environment = self._make_environment()
            self._edit()
            workers = [Worker(self._start, self) for _ in range(self._processes)]
            stack.callback(lambda: [worker.kill() for worker in workers])
            with contextlib.suppress(KeyboardInterrupt):
                for left in self._ticks(seconds, workers):
                    self._show(left)
                    for worker in workers:
                        if not worker.look():
                            self.add("restarts")
                            worker.begin()
            self._end(workers)

    def _make_environment(self) -> dict[str, str]:
        key = self.folder / "key"
        key.write_text(new_secret())
        key.chmod(0o600)
        return self._surroundings.environment(
            NPUGX_CACHE_KEY_FILE=str(key),
            NPUGX_CACHE_REMOTE=f"redis://127.0.0.1:{self._proxy.port}/0/soak",
            NPUGX_CACHE_LOCK_WAIT=str(LOCK_WAIT),
            NPUGX_CACHE_MAX_SIZE=str(LIMIT),
        )

    def _start(self, seed: int) -> subprocess.Popen[str]:
        errors = self.folder / "stderr"
        with errors.open("w") as err:
            process = subprocess.Popen(
                [sys.executable, str(WORKER), str(self._path), str(seed)],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        errors.rename(f"{errors}-{process.pid}")
        return process

    def _ticks(self, seconds: float, workers: list[Worker]) -> Iterator[float]:
        """Let things happen until the time is over; what is yielded is the time that is left."""
        while not self.counts["calls"] and not self.texts:
            yield seconds
            time.sleep(0.1)
        ends = time.monotonic() + seconds
        due = {what: time.monotonic() + self._pause(what) for what in EVERY}
        happen: dict[str, Callable[[], None]] = {
            "kill": lambda: self._kill(workers),
            "edit": self._edit,
            "prune": lambda: self._prune("--max-size", str(KEPT)),
            "fault": self._fault,
            "clear": self._clear,
        }
        while (now := time.monotonic()) < ends:
            for what, when in due.items():
                if now >= when:
                    happen[what]()
                    due[what] = now + self._pause(what)
            self._look_at_command()
            self._measure()
            yield ends - now
            time.sleep(0.1)

    def _pause(self, what: str) -> float:
        return self.rng.expovariate(1 / EVERY[what])

    def _kill(self, workers: list[Worker]) -> None:
        busy = [worker for worker in workers if worker.busy and not worker.killed]
        if busy:
            self.rng.choice(busy).kill()
            self.add("kills")

    def _edit(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(source(self.rng.choice(VERSIONS)))
        new.replace(self._path)
        self.add("edits")

    def _fault(self) -> None:
        fault: Fault = "none"
        if self._proxy.fault == "none":
            fault = self.rng.choice([each for each in get_args(Fault) if each != "none"])
            self.add("faults injected")
        self._proxy.set(fault)

    def _clear(self) -> None:
        """Empty the folder, so that Redis alone has the entries, and sometimes Redis as well."""
        if self._command is None:
            if self.rng.random() < 0.5:
                self._ask_redis("FLUSHALL")
            self._prune("--all", "--yes")
            self.add("clears")

    def _prune(self, *how: str) -> None:
        if self._command is None:
            self._command_began = time.monotonic()
            self._command = self._cli("prune", *how)
            self.add("prunes")

    def _cli(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "npugx_cache", *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _look_at_command(self, *, wait: bool = False) -> None:
        command = self._command
        if command is None:
            return
        if wait:
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(HANG)
        if command.poll() is not None:
            assert command.stderr is not None
            text = command.stderr.read()
            # A worker that keeps the limit prunes as well.
            if command.returncode and "another prune of this cache is running" not in text:
                self.found("exceptions", f"npugx-cache ended with {command.returncode}: {text}")
            self._command = None
        elif time.monotonic() - self._command_began > HANG:
            command.kill()
            self.found("hangs", "npugx-cache prune")

    def _ask_redis(self, command: str) -> str:
        with socket.create_connection(("127.0.0.1", self._redis), timeout=30) as connection:
            connection.sendall(f"{command}\r\n".encode())
            return connection.recv(1 << 16).decode(errors="replace")

    def _measure(self) -> None:
        lines = self._ask_redis("INFO memory").splitlines()
        used = next(line for line in lines if line.startswith("used_memory:"))
        sizes = {
            "folder": _size(self._surroundings.store),
            "state": _size(self.folder / "state"),
            "Redis": int(used.partition(":")[2]),
        }
        for of, size in sizes.items():
            self.counts[f"largest {of}"] = max(size, self.counts[f"largest {of}"])

    def _end(self, workers: list[Worker]) -> None:
        """Let each worker finish, and look whether what is left is whole."""
        self._proxy.set("none")
        self._look_at_command(wait=True)
        for worker in workers:
            if worker.busy:
                worker.end()
            else:
                worker.kill()
        for worker in workers:
            while worker.look():
                time.sleep(0.1)
        self._command_began, self._command = time.monotonic(), self._cli("verify")
        self._look_at_command(wait=True)
        limits = {"folder": LARGEST_FOLDER, "state": LARGEST_STATE, "Redis": LARGEST_REDIS}
        for of, most in limits.items():
            size = self.counts[f"largest {of}"]
            if size > most:
                self.texts.append(f"largest {of}: {size} bytes are more than {most}")

    def _show(self, left: float) -> None:
        if sys.stderr.isatty():
            names = ("calls", "compiles", "hits", "kills", "wrong", "exceptions", "hangs")
            counts = ", ".join(f"{name} {self.counts[name]}" for name in names)
            print(f"\r\x1b[K{left:.0f} s left: {counts}", end="", file=sys.stderr, flush=True)


def _size(place: Path) -> int:
    size = 0
    for at, _, names in os.walk(place):
        for name in names:
            with contextlib.suppress(OSError):  # gone meanwhile
                size += os.lstat(f"{at}/{name}").st_size
    return size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--format", choices=("table", "json"), default="table")
    given = parser.parse_args()
    print(f"seed {given.seed}", file=sys.stderr, flush=True)
    memory = Path("/dev/shm")
    base = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base, ignore_cleanup_errors=True) as folder:
        soak = Soak(Path(folder), given.processes, given.seed)
        soak.run(given.seconds)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    shown = soak.texts[:_SHOWN]
    if given.format == "json":
        answer: dict[str, Any] = {"seed": given.seed, **soak.counts, "faults": shown}
        print(json.dumps(answer))
    else:
        for name, number in soak.counts.items():
            print(f"{name:<16} {number:>10}")
        print(*shown, sep="\n\n")
    return 1 if soak.texts else 0


if __name__ == "__main__":
    sys.exit(main())
