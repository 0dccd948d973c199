"""What a hit and a later call may cost, in counts that are the same on every machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from limits import LARGE, LIMITS, SMALL, Counts

COUNT = Path(__file__).with_name("count.py")
COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "sympy")
A_COMPILER, A_CALL_MORE = "a compiler on the way of a hit", "a call for each node of the tree"
PER_LAYER = "calls of a lookup, for each layer"

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def counted(once):
    """The counts of a cold process, and of a restart."""

    def make(surroundings):
        found = {"folder": str(surroundings.folder)}
        for layers in (SMALL, LARGE):
            own = surroundings.beside(str(layers))
            found[f"cold {layers}"] = own.run(COUNT, layers)
            found[str(layers)] = own.run(COUNT, layers)
        return found

    return once("gates", make)


@pytest.fixture(scope="module")
def more_counted(once, counted):
    """The counts of further restarts, with what limits must find and without."""

    def make(surroundings):
        def fleet(layers):
            return type(surroundings)(Path(counted["folder"]) / str(layers))

        found = {f"again {layers}": fleet(layers).run(COUNT, layers) for layers in (SMALL, LARGE)}
        hows = (A_COMPILER, A_CALL_MORE)
        return found | {how: fleet(LARGE).run(COUNT, LARGE, how) for how in hows}

    return once("more gates", make)


@pytest.fixture(scope="module")
def counts(counted):
    return Counts(counted[str(SMALL)], counted[str(LARGE)])


def test_what_is_counted_are_hits(counted, counts):
    assert (counted[f"cold {LARGE}"]["compiled"], counted[f"cold {LARGE}"]["hits"]) == (1, 0)
    for each in counts:
        assert (each["compiled"], each["hits"]) == (0, 1)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_limit(counts, limit):
    count = limit.count(counts)
    assert count <= limit.at_most, f"{count:g} {limit.name}: more than before, for {limit.protects}"


def test_a_hit_loads_no_compiler(counts):
    assert loaded_compilers(counts.large) == []


def loaded_compilers(count):
    return [name for name in count["modules"] if name.startswith(COMPILERS)]


def test_the_same_is_counted_again(counted, more_counted):
    for layers in (SMALL, LARGE):
        assert counted[str(layers)] == more_counted[f"again {layers}"]


def test_a_compiler_on_the_way_of_a_hit_is_found(more_counted):
    assert "torch._dynamo" in loaded_compilers(more_counted[A_COMPILER])


def test_a_call_more_for_each_node_is_found(counted, more_counted):
    [limit] = [limit for limit in LIMITS if limit.name == PER_LAYER]
    assert limit.count(Counts(counted[str(SMALL)], more_counted[A_CALL_MORE])) > limit.at_most
