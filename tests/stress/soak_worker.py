"""A worker of `soak.py`: calls cached functions of a module that others edit meanwhile.

Prints a line of JSON after each step: the counts of this process so far, and what was wrong.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import json
import logging
import random
import re
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

import torch

import npugx_cache

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

EXPECTED = (
    r"the remote tier \S+ is not asked for ",
    r"\d+ entries were not written to the remote tier",
    r".*: not done at the remote tier: (?!\w+\()",  # and no exception, which is shown by its repr
    r"not done at the remote tier, because too much is left",
    r"a lock is still held",
)
"""What a log may say at WARNING under these faults. Anything else counts as an exception."""
SHAPES = ((4, 8), (6, 8))


class Faults(logging.Handler):
    """Keeps the warnings that nothing here explains."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info is not None:
            text += "\n" + "".join(traceback.format_exception(*record.exc_info))
        if not any(re.match(each, text) for each in EXPECTED):
            self.found.append(f"{record.levelname} {text}")


def loaded(path: str) -> ModuleType:
    """The module as it is now, as a process that starts now would import it."""
    spec = importlib.util.spec_from_file_location("workload", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["workload"] = module
    spec.loader.exec_module(module)
    return module


class Life:
    """The steps of one worker, chosen by a seed."""

    def __init__(self, path: str, seed: int) -> None:
        self._path, self._rng = path, random.Random(seed)
        self._calls = 0
        self._log = Faults()
        logging.getLogger("npugx_cache").addHandler(self._log)

    def step(self) -> None:
        """Call two functions of the module, and compare each result with that of eager."""
        rng = self._rng
        module = loaded(self._path)
        for name in rng.sample(module.NAMES, 2):
            made = getattr(module, name)
            if isinstance(made, type):  # two equal models, because one of them is changed
                eager, cached = made(), npugx_cache.cache_compile(made())
            else:
                eager, cached = made, npugx_cache.cache_compile(made)
            for shape in rng.sample(SHAPES, rng.choice((1, 2))):
                x = torch.arange(shape[0] * shape[1], dtype=torch.float32).reshape(shape) / 7
                what = f"{name} of version {module.VERSION} with {shape}"
                self._call(what, eager, cached, x)
                self._call(f"{what} again", eager, cached, x)
                if rng.random() < 0.2:
                    module.SCALE += 100
                    self._call(f"{what} and SCALE={module.SCALE}", eager, cached, x)

    def _call(self, what: str, eager: Callable[..., Any], cached: Any, x: torch.Tensor) -> None:
        self.tell(begins=what)
        self._calls += 1
        with torch.no_grad():
            expected = eager(x)
            try:
                result = cached(x)
            except Exception:
                self.tell(exception=f"{what}: {traceback.format_exc()}")
                return
        if not torch.equal(result, expected):
            self.tell(wrong=f"{what}: {result.flatten()[:4]} is not {expected.flatten()[:4]}")
        explain = getattr(cached, "explain", None) or cached.forward.explain
        for fault in re.findall("a fault of [^\n]*", " ".join(map(str, explain()))):
            self.tell(exception=f"{what}: {fault}")

    def tell(self, **more: str) -> None:
        found, self._log.found = self._log.found, []
        counted = npugx_cache.metrics()
        counts = {
            "calls": self._calls,
            "compiles": counted.misses,
            "hits": counted.hits,
            "bypasses": counted.bypasses,
            "remote hits": counted.remote_requests.get("lookup ok", 0),
        }
        for text in found:
            print(json.dumps({"exception": text, "counts": counts}), flush=True)
        print(json.dumps({**more, "counts": counts}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("seed", type=int)
    given = parser.parse_args()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # for the stacks of a worker that hangs
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    life = Life(given.path, given.seed)
    for _ in range(random.Random(given.seed).randrange(10, 60)):
        life.step()
        if ended:
            break
    life.tell(end="of a life")


if __name__ == "__main__":
    main()
