"""Makes the calls of a stage one by one, and compares what each gives with what eager gave."""

from __future__ import annotations

import json
import random
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npugx_cache.triage import compared, reached

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npugx_cache.api import CachedFunction
    from npugx_cache.key.recipe import Recipe
    from npugx_cache.triage.events import Events
    from npugx_cache.triage.plan import Plan
    from npugx_cache.triage.ways import Runs

_MOST_SHOWN = 60
_SPREAD = 2.0
"""Two eager runs show less than the greatest difference that eager has from itself."""


class Made(NamedTuple):
    """What one call was given and gave.

    values: results, and what the arguments hold after the call. given: a short text for each value
    that the arguments held before. draws: whether the call drew random numbers.
    """

    function: str
    raised: str | None
    values: dict[str, Any]
    given: dict[str, str]
    draws: bool


class Recorder:
    """Runs the calls of a stage. The way "eager" keeps what they give; the others compare."""

    def __init__(self, plan: Plan, events: Events, runs: Runs) -> None:
        self._plan, self._events, self._runs = plan, events, runs
        self._kept = Path(plan.scratch) / "eager"
        self._kept.mkdir(exist_ok=True)
        self.calls = 0

    def run(
        self,
        cached: CachedFunction[..., Any],
        recipe: Recipe,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        number, self.calls = self.calls, self.calls + 1
        names = recipe.function.__code__.co_varnames[: recipe.function.__code__.co_argcount]
        before = _arguments(names, args, kwargs)
        given = {path: reached.content(value) for path, value in before.items()}
        self._events.write("begin", call=number, function=recipe.title)
        raised: Exception | None = None
        result: Any = None
        started = time.perf_counter()
        with _seed_generators(self._plan.seed + number) as drawn:
            try:
                result = self._runs.run(cached, recipe, args, kwargs, number)
            except Exception as error:  # noqa: BLE001 - it is compared, and raised again
                raised = error
        seconds = time.perf_counter() - started
        values = {} if raised else reached.leaves(result, "result")
        after = _arguments(names, args, kwargs)
        values |= {f"{path} after the call": value for path, value in after.items()}
        made = Made(
            function=recipe.title,
            raised=_words(raised) if raised else None,
            values={path: _storable_value(value) for path, value in values.items()},
            given=given,
            draws=drawn[0],
        )
        kind, detail = self._judge_call(number, made)
        self._events.write(
            "end",
            call=number,
            function=recipe.title,
            kind=kind,
            detail=detail,
            draws=made.draws,
            seconds=seconds,
            **self._runs.about(cached, recipe),
        )
        if self._plan.way == "eager":
            shown = {path: reached.describe_value(value) for path, value in before.items()}
            self._events.write(
                "inputs", call=number, inputs=dict(list(shown.items())[:_MOST_SHOWN])
            )
        if raised:
            raise raised
        return result

    def _judge_call(self, number: int, made: Made) -> tuple[str, str]:
        """The kind and the detail of a call, by what eager did at the same call."""
        if self._plan.way == "eager":
            torch.save(made._asdict(), self._kept / f"{number}.pt")
            return ("raised", made.raised) if made.raised else ("equal", "")
        try:
            expected = Made(**torch.load(self._kept / f"{number}.pt", weights_only=True))
        except FileNotFoundError:
            return "inputs", "eager makes no such call"
        if expected.function != made.function:
            return "inputs", f"it is of {made.function}, and eager's of {expected.function}"
        if changed := _first_change(expected.given, made.given):
            return "inputs", f"{changed} is not what eager was given"
        if made.raised or expected.raised:
            return _errors_judged(expected.raised, made.raised)
        spread = self._spread(number, expected, made)
        return compared.worst(expected.values, made.values, spread)

    def _spread(self, number: int, expected: Made, made: Made) -> dict[str, float] | None:
        """By how much eager differs from itself; the way "eager again" measures that."""
        file = self._kept / f"{number} spread.json"
        if self._plan.way == "eager again":
            both = expected.values.keys() & made.values.keys()
            gaps = {p: compared.distance(expected.values[p], made.values[p]) for p in both}
            file.write_text(json.dumps({p: _SPREAD * gap for p, gap in gaps.items() if gap}))
            return None
        return dict(json.loads(file.read_text())) if file.exists() else None


def _arguments(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    named = dict(zip(names, args, strict=False))
    named |= {f"args[{at}]": value for at, value in enumerate(args) if at >= len(names)}
    found: dict[str, Any] = {}
    for name, value in {**named, **kwargs}.items():
        found |= reached.leaves(value, name)
    return found


def _storable_value(value: Any) -> Any:
    """A value in a form that is stored and loaded without running code."""
    if isinstance(value, torch.Tensor):
        if reached.can_be_compared(value):
            return reached.copy_to_host(value)
        return f"a {type(value).__qualname__}, which is not compared"
    # No isinstance: a number of NumPy's and a member of an enum are loaded by running code.
    return value if type(value) in {bool, int, float, str, type(None)} else repr(value)


def _words(error: Exception) -> str:
    return f"{type(error).__qualname__}: {error}"


def _errors_judged(expected: str | None, made: str | None) -> tuple[str, str]:
    if made is None:
        return "different", f"eager raises {expected}"
    same = expected is not None and expected.partition(":")[0] == made.partition(":")[0]
    return ("equal", f"raises {made}") if same else ("raised", made)


def _first_change(expected: dict[str, str], made: dict[str, str]) -> str | None:
    for path in (*expected, *made):
        if expected.get(path) != made.get(path):
            return path
    return None


@contextmanager
def _seed_generators(seed: int) -> Iterator[list[bool]]:
    """Random numbers that start from `seed`, and afterwards those that came before.

    The list says after the block whether the block drew any.
    """
    drawn = [False]
    state = random.getstate()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        random.seed(seed)
        before = _generators()
        try:
            yield drawn
        finally:
            after = _generators()
            drawn[0] = any(not torch.equal(a, b) for a, b in zip(before, after, strict=False))
            random.setstate(state)


def _generators() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state())
    return states
