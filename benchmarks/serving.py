"""A server that is killed under load: requests that are lost, and how soon it answers again.

`examples/serve_decode.py` is killed without notice while clients ask for tokens, and is started
again at once. Its listening socket is kept, as a systemd socket is, so that connections wait.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from measuring import Numbers, environment, markdown, run_script

SERVER = Path(__file__).parents[1] / "examples/serve_decode.py"
PROMPTS = ("hi", "a longer request", "what does a restart cost, and who pays for it?")
TOKENS = 8
WAYS = {
    "the cache": {},
    "no cache, compiled": {"NPUGX_CACHE": "off"},
    "eager": {"NPUGX_CACHE": "off", "NPUGX_CACHE_ON_MISS": "eager"},
}
COLUMNS = (
    "restarted with",
    "answered",
    "cut off by the kill",
    "lost otherwise",
    "kill to next token, s",
    "of that, until imports are done, s",
    "imports to warm, s",
    "imports to first token, s",
    "first token before the kill, median, s",
)


def measure(quick: bool) -> Numbers:
    layers, clients, answers = ("2", 3, 10) if quick else ("28", 4, 40)
    found: Numbers = {}
    for way, settings in WAYS.items():
        print(way, file=sys.stderr, flush=True)
        with (
            tempfile.TemporaryDirectory() as folder,
            socket.create_server(("127.0.0.1", 0), backlog=256) as listening,
        ):
            folders = {"NPUGX_CACHE_DIR": f"{folder}/cache", "XDG_STATE_HOME": folder}
            made = environment(LAYERS=layers, LISTEN_FDS="1", **folders, **settings)
            found[way] = restart(Load(listening.getsockname(), clients), listening, made, answers)
    return found


def restart(load: Load, listening: socket.socket, env: dict[str, str], answers: int) -> Numbers:
    """The figures of one server that is killed and started again while clients ask."""
    first = start(listening, env)
    try:
        while asked(load.address, "/health", 1)[0]["state"] != "warm":
            time.sleep(0.1)
        load.begin()
        load.wait_for(answers)
        killed = time.time()
        first.kill()
        first.wait()
        again = start(listening, env)
    finally:
        first.kill()
    try:
        load.wait_for(len(load.done) + answers)
        health = asked(load.address, "/health", 1)[0]
        load.end()
    finally:
        again.kill()
        again.wait()
    return figures(load.done, killed, health)


def figures(requests: list[Request], killed: float, health: Numbers) -> Numbers:
    good = [each for each in requests if each.tokens == TOKENS]
    cut = [each for each in requests if each.tokens < TOKENS and each.began <= killed]
    first = min(each.first for each in good if each.first > killed)
    before = sorted(each.first - each.began for each in good if each.first < killed)
    texts: dict[str, set[str]] = {}
    for each in good:
        texts.setdefault(each.prompt, set()).add(each.text)
    return {
        "answered": len(good),
        "cut": len(cut),
        "lost": len(requests) - len(good) - len(cut),
        "down": first - killed,
        "imports": health["imported"] - killed,
        "warm": health["warm_after"],
        "first": first - health["imported"],
        "before": before[len(before) // 2],
        "compiled": health["compiled"],
        "texts_of_a_prompt": max(map(len, texts.values())),
    }


def start(listening: socket.socket, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """A server that has the socket as descriptor 3."""
    number = listening.fileno()
    command = ["sh", "-c", f'exec "$0" "$1" 3<&{number}', sys.executable, str(SERVER)]
    return subprocess.Popen(command, env=env, pass_fds=(number,))


class Request:
    """What came of one request. `first`: when the first token came, or 0."""

    def __init__(self, prompt: str, began: float) -> None:
        self.prompt, self.began, self.first = prompt, began, 0.0
        self.tokens, self.text = 0, ""


class Load:
    """Clients that ask without a pause, each one thing at a time."""

    def __init__(self, address: tuple[str, int], clients: int) -> None:
        self.address = address
        self.done: list[Request] = []
        self._ended, self._changed = threading.Event(), threading.Condition()
        self._clients = [threading.Thread(target=self._ask, args=(n,)) for n in range(clients)]

    def begin(self) -> None:
        for client in self._clients:
            client.start()

    def end(self) -> None:
        self._ended.set()
        for client in self._clients:
            client.join()

    def wait_for(self, answers: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self.done) >= answers)

    def _ask(self, number: int) -> None:
        while not self._ended.is_set():
            prompt = PROMPTS[number % len(PROMPTS)]
            number += 1
            request = Request(prompt, time.time())
            path = f"/generate?prompt={prompt.replace(' ', '+')}&tokens={TOKENS}"
            # A request that is cut off is counted, because tokens are missing.
            with contextlib.suppress(OSError, ValueError):
                asked(self.address, path, TOKENS, request)
            with self._changed:
                self.done.append(request)
                self._changed.notify_all()


def asked(
    address: tuple[str, int], path: str, lines: int, request: Request | None = None
) -> list[Any]:
    """The lines of an answer, as they came in; raises OSError or ValueError if it is cut off."""
    found: list[Any] = []
    with socket.create_connection(address) as connection, connection.makefile("rb") as file:
        connection.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        while file.readline().strip():
            pass
        for line in file:
            found.append(json.loads(line))
            if request is not None:
                request.first = request.first or time.time()
                request.tokens, request.text = len(found), request.text + found[-1]
    if len(found) < lines:
        raise ValueError("cut off")
    return found


def text(found: Numbers) -> str:
    rows = []
    for way, row in found.items():
        counts = (f"{row[name]}" for name in ("answered", "cut", "lost"))
        times = (f"{row[name]:.2f}" for name in ("down", "imports", "warm", "first", "before"))
        rows.append([way, *counts, *times])
    return markdown(COLUMNS, rows)


if __name__ == "__main__":
    run_script(__doc__, measure, text)
