"""Finds repeated blocks of calls in a graph, such as the layers of a model, and folds them.

A block is repeated if the same operators follow each other with equal arguments and results, and
if each copy takes its values from the same places: from itself, from the copy before it, or from
outside. The calls keep their order, so the folded graph computes what the graph computes.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from npugx_cache.backend.program import VALUE, Call, Function, Program, values_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from npugx_cache.portable import Plain

_FEWEST_CALLS = 4
_LEAST_SAVED = 12
_PERIODS = 48
_OCCURRENCES = 4
"""How many earlier calls like a call are compared with it: a layer has most operators twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Copies of a block, one after the other.

    carried: for each of the first parameters of the block, the value that the first copy gets, and
    which call of the copy before gives it to the others.
    given: for each other parameter, its values for all copies; first those that are equal for all.
    last, each: which calls' results are used after the loop: those of the last copy, of all copies.
    """

    start: int
    period: int
    copies: int
    carried: tuple[tuple[int, int], ...]
    given: tuple[tuple[int, ...], ...]
    last: tuple[int, ...]
    each: tuple[int, ...]
    block: Folded

    @property
    def results(self) -> tuple[int, ...]:
        """The calls of a block whose results it returns, in this order."""
        carried = dict.fromkeys(call for _, call in self.carried)
        return tuple(dict.fromkeys((*carried, *self.last, *self.each)))


class Folded(NamedTuple):
    """A function in which repeated calls are loops.

    `items` are positions of calls, and loops; `origins` the place of each call in the whole graph.
    """

    function: Function
    items: tuple[int | Loop, ...]
    origins: tuple[int, ...]


def fold(program: Program, labels: Sequence[Any]) -> Folded:
    """The graph of a program with its repeats folded. Calls are equal if their labels are, too."""
    origins = tuple(range(len(program.calls)))
    return _Folding(len(program.constants), labels).fold(program.main, origins)


class _Candidate(NamedTuple):
    start: int
    slack: int
    period: int
    copies: int


class _Folding:
    def __init__(self, constants: int, labels: Sequence[Any]) -> None:
        self._constants = constants
        self._labels = labels
        self._tokens: dict[Any, int] = {}

    def fold(self, function: Function, origins: tuple[int, ...]) -> Folded:
        tokens = [
            self._token(call, self._labels[origin])
            for call, origin in zip(function.calls, origins, strict=True)
        ]
        return Folded(
            function, tuple(self._items(function, origins, tokens, 0, len(tokens))), origins
        )

    def _token(self, call: Call, label: Any) -> int:
        names = [name for name, _ in call.kwargs]
        content = (call.operator, len(call.args), *names, *map(_frozen, call.arguments()), label)
        return self._tokens.setdefault(content, len(self._tokens))

    def _items(
        self, function: Function, origins: tuple[int, ...], tokens: list[int], low: int, high: int
    ) -> Iterator[int | Loop]:
        for candidate in _candidates(tokens, low, high):
            loop = self._loop(function, origins, candidate)
            if loop is not None:
                end = loop.start + loop.period * loop.copies
                yield from self._items(function, origins, tokens, low, loop.start)
                yield loop
                yield from self._items(function, origins, tokens, end, high)
                return
        yield from range(low, high)

    def _loop(self, function: Function, origins: tuple[int, ...], found: _Candidate) -> Loop | None:
        first = len(function.inputs) + self._constants
        last_uses = _last_uses(function, first)
        starts = range(found.start, found.start + found.slack + 1)

        def crossing(start: int) -> int:
            """How many results one copy hands to the others; what is used later is no matter."""
            border, end = start + found.period, start + found.period * found.copies
            return sum(border <= last_uses[call] < end for call in range(start, border))

        for start in sorted(starts, key=crossing):
            for skipped, copies in ((0, found.copies), (1, found.copies - 1)):
                if copies > 1:
                    begin = start + skipped * found.period
                    loop = self._arranged(function, origins, begin, found.period, copies)
                    if loop is not None:
                        return loop
            if start - found.start > found.period:
                break
        return None

    def _arranged(
        self, function: Function, origins: tuple[int, ...], start: int, period: int, copies: int
    ) -> Loop | None:
        """The loop of these copies; None if they take values from other places than one another."""
        first = len(function.inputs) + self._constants
        calls = function.calls[start : start + period * copies]
        rows = [list(call.values()) for call in calls]

        def place(value: int) -> tuple[int, int] | None:
            position = value - first - start
            return divmod(position, period) if 0 <= position < len(calls) else None

        carried: dict[tuple[int, int], None] = {}
        given: dict[tuple[int, ...], None] = {}
        slots: list[Any] = []
        for call in range(period):
            for values in zip(*(rows[copy * period + call] for copy in range(copies)), strict=True):
                places = [place(value) for value in values]
                if all(at is None for at in places):
                    if len(set(values)) == 1 and len(function.inputs) <= values[0] < first:
                        slots.append(("constant", values[0] - len(function.inputs)))
                        continue
                    given[values] = None
                    slots.append(("given", values))
                    continue
                target = places[-1]
                assert target is not None or any(places)
                if target is None:
                    return None
                offset = target[1]
                if places == [(copy, offset) for copy in range(copies)]:
                    slots.append(("own", offset))
                elif places == [None, *((copy, offset) for copy in range(copies - 1))]:
                    carried[values[0], offset] = None
                    slots.append(("carried", (values[0], offset)))
                else:
                    return None
        given = dict.fromkeys(sorted(given, key=lambda values: len(set(values)) > 1))
        end = start + period * copies
        used = _used_after(function, first, start, end)
        each = sorted({(v - first - start) % period for v in used if v < first + end - period})
        last = sorted({(v - first - start) % period for v in used} - set(each))
        loop = Loop(
            start=start,
            period=period,
            copies=copies,
            carried=tuple(carried),
            given=tuple(given),
            last=tuple(last),
            each=tuple(each),
            block=Folded(function, (), ()),
        )
        block = self._block(calls[:period], slots, loop)
        folded = self.fold(block, origins[start : start + period])
        return Loop(
            **{name: getattr(loop, name) for name in Loop.__slots__ if name != "block"},
            block=folded,
        )

    def _block(self, calls: Sequence[Call], slots: list[Any], loop: Loop) -> Function:
        """The first copy as a function of its own, with its values numbered anew."""
        parameters: list[tuple[str, Any]] = [("carried", each) for each in loop.carried]
        parameters += [("given", each) for each in loop.given]
        places = {parameter: place for place, parameter in enumerate(parameters)}
        first = len(parameters) + self._constants

        def number(slot: tuple[str, Any]) -> int:
            kind, what = slot
            if kind == "own":
                return first + int(what)
            if kind == "constant":
                return len(parameters) + int(what)
            return places[slot]

        numbers = iter([number(slot) for slot in slots])
        renumbered = tuple(
            call._replace(
                args=[_with(arg, numbers) for arg in call.args],
                kwargs=[[name, _with(arg, numbers)] for name, arg in call.kwargs],
            )
            for call in calls
        )
        outputs: list[Plain] = [[VALUE, first + call] for call in loop.results]
        names = tuple(f"p{place}" for place in range(len(parameters)))
        result = outputs[0] if len(outputs) == 1 else ["tuple", outputs]
        return Function("block", names, renumbered, result)


def _candidates(tokens: list[int], low: int, high: int) -> list[_Candidate]:
    """Runs of equal tokens at a distance, what saves most lines first."""
    seen: dict[int, deque[int]] = {}
    gaps: Counter[int] = Counter()
    for place in range(low, high):
        before = seen.setdefault(tokens[place], deque(maxlen=_OCCURRENCES))
        gaps.update(place - other for other in before)
        before.append(place)
    found = []
    for period, _ in gaps.most_common(_PERIODS):
        if period < _FEWEST_CALLS:
            continue
        place = low
        while place + period < high:
            end = place
            while end + period < high and tokens[end] == tokens[end + period]:
                end += 1
            copies = (end - place) // period + 1
            if copies > 1 and period * (copies - 1) >= _LEAST_SAVED:
                found.append(_Candidate(place, (end - place) % period, period, copies))
            place = end + 1
    return sorted(found, key=lambda each: each.period * (1 - each.copies))


def _last_uses(function: Function, first: int) -> list[int]:
    """For each call, the position of the last call that uses its result, or the end."""
    last = [-1] * len(function.calls)
    for position, call in enumerate(function.calls):
        for value in call.values():
            if value >= first:
                last[value - first] = position
    for value in values_in(function.outputs):
        if value >= first:
            last[value - first] = len(function.calls)
    return last


def _used_after(function: Function, first: int, start: int, end: int) -> set[int]:
    """The results of the calls from `start` to `end` that are used after them."""
    later = [*values_in(function.outputs)]
    for call in function.calls[end:]:
        later += call.values()
    return {value for value in later if first + start <= value < first + end}


def _frozen(data: Plain) -> Any:
    """An encoded argument without the values that it refers to, to be compared."""
    match data:
        case [kind, _] if kind == VALUE:
            return VALUE
        case ["list" | "tuple" | "size" as kind, list() as items] | ["slice" as kind, *items]:
            return kind, tuple(map(_frozen, items))
    return type(data).__name__, repr(data)


def _with(data: Plain, numbers: Iterator[int]) -> Plain:
    """The same argument with other values, in the order of `values_in`."""
    match data:
        case [kind, _] if kind == VALUE:
            return [VALUE, next(numbers)]
        case ["list" | "tuple" | "size" as kind, list() as items]:
            return [kind, [_with(item, numbers) for item in items]]
        case ["slice", *items]:
            return ["slice", *(_with(item, numbers) for item in items)]
    return data


def loops_in(folded: Folded) -> Iterable[Loop]:
    """All loops of a function and of their blocks, inner ones first."""
    for item in folded.items:
        if isinstance(item, Loop):
            yield from loops_in(item.block)
            yield item
