"""Finds repeated blocks of calls in a graph, such as the layers of a model, and folds them.

A block is repeated if the same operators follow each other with equal arguments and results, and
if each copy takes its values from the same places: from itself, from the copy before it, or from
outside. The calls keep their order, so the folded graph computes what the graph computes.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from npugx_cache.backend.program import VALUE, Call, Function, Program, values_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from npugx_cache.portable import Plain

_FEWEST_CALLS = 4
_PERIODS = 48
_OCCURRENCES = 4
"""How many earlier calls like a call are compared with it: a layer has most operators twice."""
_WORK = 16
"""How often each call may be looked at on average. A model's layers take three looks or four."""


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

    def calls(self, copy: int) -> range:
        """The positions of the calls of a copy."""
        start = self.start + copy * self.period
        return range(start, start + self.period)

    def all_calls(self) -> range:
        """The positions of the calls of all copies."""
        return range(self.start, self.start + self.period * self.copies)

    def given_back(self, copy: int, first: int) -> list[int]:
        """The values that a copy returns; `first` is the number of the first call's result."""
        return [first + self.calls(copy)[call] for call in self.results]

    def arguments(self, copy: int, first: int) -> list[int]:
        """The values that a copy gets."""
        before = first + self.start + (copy - 1) * self.period
        carried = [before + call if copy else value for value, call in self.carried]
        return [*carried, *(values[copy] for values in self.given)]


class Folded(NamedTuple):
    """A function in which repeated calls are loops.

    `items` are positions of calls, and loops; `origins` the place of each call in the whole graph.
    """

    function: Function
    items: tuple[int | Loop, ...]
    origins: tuple[int, ...]


def fold(program: Program, labels: Sequence[Any], *, saved: int) -> Folded:
    """The graph of a program with its repeats folded. Calls are equal if their labels are, too.

    A block is folded if all its copies but one have at least `saved` calls together.
    """
    origins = tuple(range(len(program.calls)))
    return _Folding(len(program.constants), labels, saved).fold(program.main, origins)


def unfolded(function: Function) -> Folded:
    """A function of which nothing is folded."""
    return Folded(function, tuple(range(len(function.calls))), ())


class _Candidate(NamedTuple):
    """Copies whose operators are equal. They may begin up to `slack` calls later as well."""

    start: int
    slack: int
    period: int
    copies: int


class _Calls(NamedTuple):
    """The calls of a function, and what is asked of them again and again.

    first: the number of the first call's result. values: those that each call takes.
    """

    function: Function
    origins: tuple[int, ...]
    first: int
    tokens: list[int]
    values: list[list[int]]
    last_uses: list[int]

    @classmethod
    def of(cls, folding: _Folding, function: Function, origins: tuple[int, ...]) -> _Calls:
        first = len(function.inputs) + folding.constants
        tokens = list(map(folding.token, function.calls, origins))
        values = [list(call.values()) for call in function.calls]
        return cls(function, origins, first, tokens, values, _last_uses(function, first))


class _Folding:
    """Folds a function, then the block of each loop, then those of its loops.

    `saved` is how many calls a loop must save. What equal operators promise and values do not keep
    is tried in vain, so the work has a limit: beyond it, calls stay as they are.
    """

    def __init__(self, constants: int, labels: Sequence[Any], saved: int) -> None:
        self.constants = constants
        self._labels = labels
        self._saved = saved
        self._tokens: dict[Any, int] = {}
        self._work_left = _WORK * len(labels)

    def fold(self, function: Function, origins: tuple[int, ...]) -> Folded:
        return Folded(function, tuple(self._items(_Calls.of(self, function, origins))), origins)

    def token(self, call: Call, origin: int) -> int:
        """A number that calls have in common if they differ in their values alone."""
        names = [name for name, _ in call.kwargs]
        label = self._labels[origin]
        content = (call.operator, len(call.args), *names, *map(_frozen, call.arguments()), label)
        return self._tokens.setdefault(content, len(self._tokens))

    def _items(self, calls: _Calls) -> Iterator[int | Loop]:
        todo: list[Loop | range] = [range(len(calls.tokens))]
        while todo:
            part = todo.pop()
            if isinstance(part, Loop):
                yield part
            elif (loop := self._first_loop(calls, part)) is None:
                yield from part
            else:
                inside = loop.all_calls()
                todo += [range(inside.stop, part.stop), loop, range(part.start, inside.start)]

    def _first_loop(self, calls: _Calls, part: range) -> Loop | None:
        self._work_left -= len(part)
        if self._work_left < 0:
            return None
        candidates = _candidates(calls.tokens, part.start, part.stop, self._saved)
        loops = (self._loop(calls, candidate) for candidate in candidates)
        return next(filter(None, loops), None)

    def _loop(self, calls: _Calls, found: _Candidate) -> Loop | None:
        for start in _starts(calls.last_uses, found):
            for skipped, copies in ((0, found.copies), (1, found.copies - 1)):
                if copies > 1 and self._work_left > 0:
                    begin = start + skipped * found.period
                    loop = self._arranged(calls, begin, found.period, copies)
                    if loop is not None:
                        return loop
        return None

    def _arranged(self, calls: _Calls, start: int, period: int, copies: int) -> Loop | None:
        """The loop of these copies; None if they take values from other places than one another."""
        function, first = calls.function, calls.first
        begin = first + start
        carried: dict[tuple[int, int], None] = {}
        given: dict[tuple[int, ...], None] = {}
        slots: list[Any] = []
        for call in range(start, start + period):
            self._work_left -= copies
            rows = [calls.values[call + copy * period] for copy in range(copies)]
            for values in zip(*rows, strict=True):
                own, before = values[0], values[1]  # of the first two copies
                if own >= begin:
                    if values != _every(period, own, copies):
                        return None
                    slots.append(("own", own - begin))
                elif before >= begin:
                    of_first_copy = before < begin + period
                    if not of_first_copy or values[1:] != _every(period, before, copies - 1):
                        return None
                    carried[own, before - begin] = None
                    slots.append(("carried", (own, before - begin)))
                elif max(values) >= begin:
                    return None
                elif len(set(values)) == 1 and len(function.inputs) <= own < first:
                    slots.append(("constant", own - len(function.inputs)))
                else:
                    given[values] = None
                    slots.append(("given", values))
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
        block = self._block(function.calls[start : start + period], slots, loop)
        folded = self.fold(block, calls.origins[start : start + period])
        return Loop(
            **{name: getattr(loop, name) for name in Loop.__slots__ if name != "block"},
            block=folded,
        )

    def _block(self, calls: Sequence[Call], slots: list[Any], loop: Loop) -> Function:
        """The first copy as a function of its own, with its values numbered anew."""
        parameters: list[tuple[str, Any]] = [("carried", each) for each in loop.carried]
        parameters += [("given", each) for each in loop.given]
        places = {parameter: place for place, parameter in enumerate(parameters)}
        first = len(parameters) + self.constants

        def number(slot: tuple[str, Any]) -> int:
            kind, what = slot
            if kind == "own":
                return first + int(what)
            if kind == "constant":
                return len(parameters) + int(what)
            return places[slot]

        rows = iter(slots)
        renumbered = tuple(
            call.with_values([number(next(rows)) for _ in call.values()]) for call in calls
        )
        outputs: list[Plain] = [[VALUE, first + call] for call in loop.results]
        names = tuple(f"p{place}" for place in range(len(parameters)))
        result = outputs[0] if len(outputs) == 1 else ["tuple", outputs]
        return Function("block", names, renumbered, result)


def _every(period: int, first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + period * count, period))


def _starts(last_uses: list[int], found: _Candidate) -> list[int]:
    """Where copies may begin: first where one hands the fewest results to the others.

    What is used after the copies is no matter.
    """
    period, copies = found.period, found.copies
    changes = [0] * (found.slack + 2)
    for call in range(found.start, found.start + found.slack + period):
        # It is in the first copy of these starts, and used in another one.
        low = max(call - period, last_uses[call] - period * copies) + 1 - found.start
        high = min(call, last_uses[call] - period) - found.start
        if max(low, 0) <= min(high, found.slack):
            changes[max(low, 0)] += 1
            changes[min(high, found.slack) + 1] -= 1
    crossing = list(accumulate(changes))
    return sorted(
        range(found.start, found.start + found.slack + 1),
        key=lambda start: crossing[start - found.start],
    )


def _candidates(tokens: list[int], low: int, high: int, saved: int) -> list[_Candidate]:
    """Runs of equal tokens at a distance that save so many calls, what saves most first."""
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
            if copies > 1 and period * (copies - 1) >= saved:
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


def loops_in(folded: Folded) -> Iterable[Loop]:
    """All loops of a function and of their blocks, inner ones first."""
    for item in folded.items:
        if isinstance(item, Loop):
            yield from loops_in(item.block)
            yield item
