"""What a steady call costs over eager, and its guards alone. One process, all in turn, CPU time.

Every callable is made from the same model or function, so that all read the same weights. "Two
shapes": two compiled graphs side by side, called in turn, as prefill and decode are. Guards alone
are checked back to back (hot), and each after an eager call of another model (cold: what they read
has left the CPU's caches, as in a worker between two calls). "16 threads": wall time of calls that
16 threads make at once, over that of as many calls of one thread.
"""

from __future__ import annotations

import tempfile
import threading
import time
from statistics import median
from typing import TYPE_CHECKING, Any

from measuring import Numbers, in_turn, markdown, run_script
from models import qwen3, tiny

if TYPE_CHECKING:
    from collections.abc import Callable

    from measuring import Calls

LAYERS, ROUNDS = 28, 120
TINY_AT_ONCE, CHECKS_AT_ONCE = 200, 20
THREADS, MODELS_AT_ONCE = 16, 2
SHARED = ("eager", "npugx_cache")
PEERS = ("aot_eager", "eager")


def measure(quick: bool) -> Numbers:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers, times = (2, 5) if quick else (LAYERS, ROUNDS)
    model, inputs = qwen3(layers)
    short = {
        name: value[:, :8].clone() if isinstance(value, torch.Tensor) else value
        for name, value in inputs.items()
    }
    other, _ = qwen3(layers)
    pair, longer = ({"x": torch.randn(size), "y": torch.randn(size)} for size in (8, 16))
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        small, large = _Subject(tiny, folder), _Subject(model.forward, folder)
        steady = {
            "tiny": in_turn(small.calls(pair), times, TINY_AT_ONCE),
            f"{layers} layers": in_turn(large.calls(inputs), times, 1),
        }
        guards = {}
        for name, checks in zip(steady, (small.checks(pair), large.checks(inputs)), strict=True):
            guards[f"{name}, hot"] = in_turn(checks, times, CHECKS_AT_ONCE)
            evict = lambda: other(**inputs)  # noqa: E731
            guards[f"{name}, cold"] = in_turn(checks, max(times // 4, 5), 1, evict)
        threads = {
            "tiny": _in_threads(small.calls(pair), times // 8, TINY_AT_ONCE),
            f"{layers} layers": _in_threads(large.calls(inputs), times // 8, MODELS_AT_ONCE),
        }
        steady["tiny, two shapes"] = in_turn(small.calls(pair, longer), times, TINY_AT_ONCE)
        steady[f"{layers} layers, two shapes"] = in_turn(large.calls(inputs, short), times // 2, 1)
        return {"steady": steady, "guards": guards, "threads": threads}


def _in_threads(calls: Calls, times: int, at_once: int) -> Numbers:
    """Wall time of calls of many threads, over that of as many calls of one: medians."""
    found: dict[str, list[float]] = {name: [] for name in SHARED}
    for _ in range(max(times, 2)):
        for name, ratios in found.items():
            alone = _wall(calls[name], 1, THREADS * at_once)
            ratios.append(_wall(calls[name], THREADS, at_once) / alone)
    return {name: median(ratios) for name, ratios in found.items()}


def _wall(call: Callable[[], object], count: int, at_once: int) -> float:
    import torch

    start = threading.Barrier(count + 1)

    def work() -> None:
        with torch.no_grad():  # a thread begins with torch's own setting
            start.wait()
            for _ in range(at_once):
                call()

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


class _Subject:
    """One function, eager and compiled in every way."""

    def __init__(self, function: Any, folder: str) -> None:
        import torch

        from npugx_cache import cache_compile

        self._function = function
        self._cached = cache_compile(function, cache_dir=folder, dynamic=False)
        unsafe = cache_compile(function, cache_dir=folder, dynamic=False, guards="inputs_unsafe")
        self._made = {
            "eager": function,
            "npugx_cache": self._cached,
            "npugx_cache, inputs_unsafe": unsafe,
            **{
                f"torch.compile, {peer}": torch.compile(function, backend=peer, dynamic=False)
                for peer in PEERS
            },
        }

    def calls(self, *inputs: Numbers) -> Calls:
        """Calls with these arguments one after the other; what has to be compiled is."""

        def in_turn(function: Any) -> Callable[[], object]:
            return lambda: [function(**kwargs) for kwargs in inputs]

        calls = {name: in_turn(function) for name, function in self._made.items()}
        for call in calls.values():
            for _ in range(5):  # ours makes its C++ managers at the second
                call()
        return calls

    def checks(self, inputs: Numbers) -> Calls:
        """The guards alone, ours and torch's, of the one graph that there is."""
        from torch._dynamo.eval_frame import _debug_get_cache_entry_list

        from npugx_cache.conditions.check import Checker
        from npugx_cache.conditions.evaluate import Scope

        cached: Any = self._cached
        owner = () if cached._owner is None else (cached._owner,)
        function = cached._recipe.function
        scope = Scope(cached._locals(owner, inputs), function.__globals__)
        entries: list[Any] = _debug_get_cache_entry_list(function.__code__)
        torchs = entries[0].guard_manager
        [known] = cached._state.specialisations
        checker = known.conditions
        assert checker._native is not None, "no C++ managers"
        checks: dict[str, Callable[[], object]] = {
            "the clock": lambda: True,
            "torch.compile": lambda: torchs.check(scope.frame_locals),
            "npugx_cache, C++ and what is left to Python": lambda: checker._native.accept(scope),
            "npugx_cache, the same and patched code": lambda: checker.holds_quickly(scope),
            "npugx_cache, in full, first time": lambda: Checker(checker.conditions).holds(scope),
        }
        refusing = [name for name, check in checks.items() if not check()]
        assert not refusing, refusing
        return checks


def text(found: Numbers) -> str:
    steady, guards = found["steady"], found["guards"]
    names = list(steady["tiny"])
    eager, compiled = names[0], names[1:]
    rows = [
        [f"{eager}, us", *(f"{column[eager]['us']:.1f}" for column in steady.values())],
        *([name, *(f"{c[name]['over']:+.1f}" for c in steady.values())] for name in compiled),
    ]
    checks = list(guards["tiny, hot"])[1:]
    thread_rows = (
        [name, *(f"{c[name]:.2f}" for c in found["threads"].values())] for name in SHARED
    )
    check_rows = ([name, *(f"{c[name]['over']:.1f}" for c in guards.values())] for name in checks)
    return "\n\n".join(
        [
            markdown(["steady call over eager, CPU us", *steady], rows),
            markdown(["guards alone, CPU us", *guards], check_rows),
            markdown([f"wall time of {THREADS} threads / of one", *found["threads"]], thread_rows),
        ]
    )


if __name__ == "__main__":
    run_script(__doc__, measure, text)
