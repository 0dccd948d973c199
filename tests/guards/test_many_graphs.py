"""Among many graphs of one function, a call finds its own with few checks, and none is left out."""

import itertools
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npugx_cache import cache_compile
from npugx_cache.conditions import Check, Conditions, Kind, Step, TensorFact
from npugx_cache.conditions.argument_facts import Index
from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.data import CALL, columns
from npugx_cache.conditions.evaluate import Scope
from npugx_cache.conditions.kinds import live_state, seal_conditions
from npugx_cache.entry import restore
from npugx_cache.entry.restore import Specialisation
from npugx_cache.portable import encode, identity
from npugx_cache.private import runtime
from npugx_cache.specialisations import Specialisations
from npugx_cache.store.content import verified
from npugx_cache.store.io import syscalls

MANY = 32
LEVEL = 0
FILES_EACH = 8
SLOTS = 5
AGAIN_EACH = 2  # the C++ managers of a graph are made at its second full check


class Box:
    level = 0


BOX = Box()


def sized(x, flag, mode):
    x = x * 2 if flag else x + 2
    return x - 1 if mode == "less" else x


def levelled(x):
    return x * LEVEL + BOX.level


@pytest.fixture
def full_checks(monkeypatch):
    """The conditions that were checked in full, one after the other."""
    seen, check = [], Checker.holds

    def noted(self, scope):
        seen.append(self)
        return check(self, scope)

    monkeypatch.setattr(Checker, "holds", noted)
    return seen


@pytest.fixture
def looked_at(monkeypatch):
    """The files of the store that were looked at, which are taken for old enough to remember."""
    seen, look = [], syscalls.lstat
    monkeypatch.setattr(verified, "_RACY_NS", 0)

    def noted(path, *where):
        seen.append(path)
        return look(path, *where)

    monkeypatch.setattr(syscalls, "lstat", noted)
    return seen


@pytest.fixture
def candidates(monkeypatch):
    """The stored conditions that were read and decoded."""
    seen, decode = [], restore.candidate

    def noted(blobs):
        seen.append(blobs)
        return decode(blobs)

    monkeypatch.setattr(restore, "candidate", noted)
    return seen


@pytest.mark.thorough
def test_restores_and_calls_in_turn_check_few_graphs_in_full(tmp_path, full_checks, looked_at):
    calls = [
        (torch.ones(size, dtype=dtype), flag, "more")
        for size, dtype, flag in itertools.product(
            range(2, 2 + MANY // 4), (torch.float32, torch.float64), (False, True)
        )
    ]
    filled = cache_compile(sized, cache_dir=tmp_path, dynamic=False)
    for call in calls:
        filled.warm(*call)
    assert filled.cache_info().misses == MANY

    restored = cache_compile(sized, cache_dir=tmp_path, dynamic=False)
    restored.warm(*calls[0])
    full_checks.clear()
    looked_at.clear()
    for call in calls[1:]:
        assert torch.equal(restored(*call), sized(*call))
    assert restored.cache_info()[:2] == (MANY, 0)
    assert len(full_checks) <= MANY + 2  # there is no index yet when the second one is restored
    assert len(looked_at) <= FILES_EACH * MANY
    full_checks.clear()
    for call in [*calls, *calls, *calls]:
        assert torch.equal(restored(*call), sized(*call))
    assert restored.cache_info().hits == MANY
    assert len(full_checks) <= AGAIN_EACH * MANY


def test_two_graphs_in_turn_need_no_index(tmp_path, monkeypatch):
    calls = [(torch.ones(size), True, "more") for size in (2, 3, 4)]
    cached = cache_compile(sized, cache_dir=tmp_path, dynamic=False)
    for call in [*calls, *calls, *calls]:
        assert torch.equal(cached(*call), sized(*call))

    asked = []
    select = Index.select
    monkeypatch.setattr(Index, "select", lambda *args: asked.append(args) or select(*args))
    for call in [*calls[1:], *calls[1:]]:
        assert torch.equal(cached(*call), sized(*call))
    assert not asked
    assert torch.equal(cached(*calls[0]), sized(*calls[0]))
    assert len(asked) == 1


def test_entries_that_only_texts_tell_apart_are_read_once(tmp_path, candidates):
    modes = ["less", "a", "b", *(f"a text that is not stored {number}" for number in range(5))]
    x = torch.ones(3)
    filled = cache_compile(sized, cache_dir=tmp_path, dynamic=False)
    for mode in modes:
        filled.warm(x, True, mode)
    assert filled.cache_info().misses == len(modes)

    restored = cache_compile(sized, cache_dir=tmp_path, dynamic=False)
    candidates.clear()
    for mode in modes:
        assert torch.equal(restored(x, True, mode), sized(x, True, mode))
    assert restored.cache_info()[:2] == (len(modes), 0)
    # Each is read once to learn what it is about, and once more to be bound.
    assert len(candidates) <= 2 * len(modes)


def test_reasons_of_a_miss_are_those_of_all_entries(tmp_path, monkeypatch):
    x = torch.ones(3)
    filled = cache_compile(sized, cache_dir=tmp_path, dynamic=False)
    for mode in ("less", "a", "b"):
        filled.warm(x, True, mode)

    monkeypatch.setenv("NPUGX_CACHE_ON_MISS", "eager")
    experienced, fresh = (cache_compile(sized, cache_dir=tmp_path, dynamic=False) for _ in range(2))
    for mode in ("a", "b", "less"):
        experienced(x, True, mode)
    assert experienced.cache_info().hits == 3
    for cached in (experienced, fresh):
        assert torch.equal(cached(x, True, "c"), sized(x, True, "c"))
    assert len(fresh.explain()) == 4
    assert experienced.explain() == fresh.explain()


def test_graphs_that_no_argument_tells_apart_are_found(tmp_path, monkeypatch):
    x, states = torch.ones(3), [*itertools.product((2, 3), (4, 5))]

    def go_round(cached, times):
        for level, of_box in states * times:
            monkeypatch.setattr(f"{__name__}.LEVEL", level)
            monkeypatch.setattr(BOX, "level", of_box)
            assert torch.equal(cached(x), levelled(x))

    filled = cache_compile(levelled, cache_dir=tmp_path, dynamic=False)
    go_round(filled, 3)
    assert filled.cache_info()[:2] == (0, 4)
    restored = cache_compile(levelled, cache_dir=tmp_path, dynamic=False)
    go_round(restored, 3)
    assert restored.cache_info()[:2] == (4, 0)


def test_graphs_that_a_symbolic_number_tells_apart_are_found_by_the_number(
    tmp_path, monkeypatch, full_checks
):
    def put(x, table, slot):
        table[: x.shape[0], slot] = x
        return table.sum(0)

    monkeypatch.setenv("NPUGX_CACHE_RECOMPILE_LIMIT", str(SLOTS))
    x, cached = torch.ones(3, 4), cache_compile(put, cache_dir=tmp_path, dynamic=True)
    for _ in range(3):
        for slot in range(1, SLOTS + 1):
            assert torch.equal(cached(x, torch.zeros(8, 12, 4), slot)[slot], x.sum(0))
    assert cached.cache_info().misses == SLOTS
    beyond = SLOTS + 1
    assert torch.equal(cached(x, torch.zeros(8, 12, 4), beyond)[beyond], x.sum(0))
    (reason, *others) = cached.explain()
    assert "slot keeps changing" in reason.reasons[0]
    assert sorted(each.reasons for each in others) == [
        (f"slot was {slot}, is {beyond}",) for slot in range(1, SLOTS + 1)
    ]

    full_checks.clear()
    for slot in range(1, beyond + 1):
        cached(x, torch.zeros(8, 12, 4), slot)
    assert not full_checks
    assert cached.cache_info().bypasses == 2


def test_a_graph_for_any_size_is_found_beside_those_for_one(tmp_path):
    def doubled(x):
        return x * 2

    for dynamic in (False, True):
        cached = cache_compile(doubled, cache_dir=tmp_path, dynamic=dynamic)
        for _ in range(3):
            for size in (4, 5, 6):
                assert torch.equal(cached(torch.ones(size, 2)), torch.full((size, 2), 2.0))
        assert cached.cache_info().misses == (1 if dynamic else 3)


# The index against all candidates in order


@dataclass(frozen=True)
class Graph:
    """What one graph demands; None where it demands nothing."""

    size: tuple
    dtype: torch.dtype
    grad: bool
    scalar: object
    inside: object
    level: object
    sealed: bool
    equal: object
    is_whole: bool
    rows: object


NOTHING = object()
SCALARS = [0, 1, True, None, 1.0, 0.0, -0.0, float("nan"), "1", "a text", "another", torch.float32]
ODD = [None, 1, [], Box, torch.nn.Parameter(torch.ones(2))]
CHANGES = ["", "", "size", "dtype", "grad", "x", "n", "box", "inside"]
NUMBERS = st.sampled_from(SCALARS)


def graphs():
    sizes = st.lists(st.sampled_from([2, 3, None]), min_size=1, max_size=2).map(tuple)
    dtypes = st.sampled_from([torch.float32, torch.float64])
    demanded = st.one_of(st.just(NOTHING), NUMBERS)
    levels = st.sampled_from([NOTHING, 1, 2])
    return st.builds(
        Graph,
        sizes,
        dtypes,
        st.booleans(),
        demanded,
        demanded,
        levels,
        st.booleans(),
        st.sampled_from([NOTHING, NOTHING, 0, 1]),
        st.booleans(),
        st.sampled_from([NOTHING, NOTHING, 2, 3]),
    )


@st.composite
def graphs_and_calls(draw):
    """Graphs of one function, and calls: most of them as one of the graphs demands, or nearly."""
    wanted = draw(st.lists(graphs(), min_size=1, max_size=8))
    calls = []
    for _ in range(draw(st.integers(1, 12))):
        graph = draw(st.sampled_from(wanted))
        changed = draw(
            st.sampled_from(["", "", "size", "dtype", "grad", "x", "n", "box", "inside"])
        )
        sizes = [size or draw(st.sampled_from([2, 3, 4])) for size in graph.size]
        other_type = {torch.float32: torch.float64, torch.float64: torch.float32}[graph.dtype]
        x = torch.ones(
            [4, *sizes[1:]] if changed == "size" else sizes,
            dtype=other_type if changed == "dtype" else graph.dtype,
            requires_grad=graph.grad is not (changed == "grad"),
        )
        n, inside = (
            draw(NUMBERS) if changed == name or value is NOTHING else value
            for name, value in (("n", graph.scalar), ("inside", graph.inside))
        )
        frame_locals = {
            "x": draw(st.sampled_from(ODD)) if changed == "x" else x,
            "n": n,
            "box": draw(st.sampled_from([{}, None, []])) if changed == "box" else {"key": inside},
        }
        level = draw(st.sampled_from([1, 2])) if graph.level is NOTHING else graph.level
        calls.append((frame_locals, level))
    return wanted, calls


def conditions(graph):
    checks = [Check(CALL, Kind.STATE, live_state()), Check(0, Kind.TENSOR, 0)]
    for node, value in ((1, graph.scalar), (3, graph.inside), (4, graph.level)):
        if value is not NOTHING:
            checks.append(Check(node, Kind.EQUALS, encode(value)))
    if graph.is_whole:
        checks.append(Check(1, Kind.TYPE, 1))
    if graph.equal is not NOTHING:
        checks.append(Check(CALL, Kind.SHAPE, ["==", ["node", 1], ["const", graph.equal]]))
    if graph.rows is not NOTHING:
        at_least, exactly = ["<=", ["const", 2], ["node", 5]], ["==", ["const", graph.rows]]
        checks.append(Check(CALL, Kind.SHAPE, ["and", at_least, [*exactly, ["node", 5]]]))
    stride = None if None in graph.size else torch.empty(graph.size).stride()
    like = torch.ones(1, dtype=graph.dtype, requires_grad=graph.grad)
    tree = Conditions(
        parents=(-1, -1, -1, 2, -1, 0),
        steps=(Step.LOCAL, Step.LOCAL, Step.LOCAL, Step.ITEM, Step.GLOBAL, Step.SIZE),
        args=("x", "n", "box", "key", "LEVEL", 0),
        checks=columns(checks),
        idents=(identity(torch.Tensor), identity(int)),
        tensors=(
            TensorFact(
                0,
                str(graph.dtype).removeprefix("torch."),
                "cpu",
                graph.grad,
                runtime.dispatch_keys(like).raw_repr(),
                graph.size,
                stride or (None,) * len(graph.size),
                (),
            ),
        ),
    )
    return seal_conditions(tree, frozenset()) if graph.sealed else tree


class InOrder:
    """All graphs in order, the latest first, each asked quickly and then in full."""

    def __init__(self, known):
        self.known = list(known)

    def find(self, scope):
        for holds in (Specialisation.holds_quickly, Specialisation.holds):
            for each in self.known:
                if holds(each, scope):
                    self.known.sort(key=lambda other: other is not each)
                    return each
        return None


def specialisation(number, graph):
    return Specialisation(str(number), Checker(conditions(graph)), print, (), None)


@settings(max_examples=150)
@given(graphs_and_calls(), st.sampled_from([None, 0, 1]))
def test_the_choice_is_that_of_trying_all_in_order(drawn, removed):
    wanted, calls = drawn
    indexed, in_order, spaces = Specialisations(), InOrder([]), {}
    for number, graph in enumerate(wanted):
        indexed.add([specialisation(number, graph)])
        in_order.known.insert(0, specialisation(number, graph))
    for turn, (frame_locals, level) in enumerate(calls * 5):
        # One dict of globals for each level: a quick check is of the globals that it was made for.
        scope = Scope(frame_locals, spaces.setdefault(level, {"LEVEL": level}))
        found, expected = indexed.find(scope), in_order.find(scope)
        assert (found and found.entry) == (expected and expected.entry)
        if turn == 3 * len(calls) and removed is not None and removed < len(indexed):
            indexed.remove(list(indexed)[removed])
            del in_order.known[removed]
        assert [each.entry for each in indexed] == [each.entry for each in in_order.known]


@settings(max_examples=150)
@given(graphs_and_calls())
def test_what_the_index_leaves_out_does_not_hold(drawn):
    wanted, calls = drawn
    index, checkers = Index(), [Checker(conditions(graph)) for graph in wanted]
    for checker in checkers:
        index.add(checker, checker.pinned_facts())
    for frame_locals, level in calls:
        selected = {id(each) for each in index.select(frame_locals)}
        for checker in checkers:
            if checker.holds(Scope(frame_locals, {"LEVEL": level})):
                assert id(checker) in selected
