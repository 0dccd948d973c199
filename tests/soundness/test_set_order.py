"""What depends on the order of a set is no hit where the order is another one, and hits elsewhere.

A process with another hash seed walks a set of strings in another order, in eager as well.
"""

from __future__ import annotations

import pytest
import torch
from matrix import ORDER
from processes import SECONDS, run, write

from npugx_cache import cache_compile

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(4 * SECONDS)]

MISSES = [name for name, row in ORDER.items() if not row.hit]
HITS = [name for name, row in ORDER.items() if row.hit]
VERIFIED = [name for name in HITS if name != "returned"]  # a new set is spelt in some order


@pytest.fixture(scope="module")
def seeds(once):
    def make(surroundings):
        tree, names = surroundings.folder / "tree", list(ORDER)
        write(tree, ORDER, changed=False)
        one, other = {"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2", "NPUGX_CACHE": "readonly"}
        verify = {"NPUGX_CACHE_VERIFY": "recompile"}
        return {
            "cold": run(surroundings, tree, "cold", names, **one),
            "same": run(surroundings, tree, "cold", names, **one),
            "other": run(surroundings, tree, "cold", names, **other),
            "verified": run(surroundings, tree, "cold", VERIFIED, **other, **verify),
        }

    return once("set order", make)


@pytest.mark.parametrize("name", list(ORDER))
def test_the_compiling_process_walks_in_eagers_order(seeds, name):
    cold = seeds["cold"][name]
    assert cold["difference"] is None
    assert (cold["misses"], cold["bypasses"]) == (1, 0), cold["warnings"]


@pytest.mark.parametrize("name", list(ORDER))
def test_the_same_order_is_a_hit(seeds, name):
    same = seeds["same"][name]
    assert same["difference"] is None
    assert (same["hits"], same["misses"]) == (1, 0), same["reasons"]


@pytest.mark.parametrize("name", MISSES)
def test_another_order_is_a_miss_that_says_so(seeds, name):
    cold, other = seeds["cold"][name], seeds["other"][name]
    assert other["difference"] is None
    assert other["eager"] != cold["eager"], "the order does not show in the result"
    assert (other["hits"], other["misses"]) == (0, 1)
    for text in ORDER[name].says or ["the order of the set was ["]:
        assert any(text in reason for reason in other["reasons"]), other["reasons"]


@pytest.mark.parametrize("name", HITS)
def test_an_order_that_does_not_matter_is_a_hit(seeds, name):
    other = seeds["other"][name]
    assert other["difference"] is None
    assert (other["hits"], other["misses"]) == (1, 0), other["reasons"]


@pytest.mark.parametrize("name", VERIFIED)
def test_compiled_under_another_order_it_is_the_same_entry(seeds, name):
    assert seeds["verified"][name]["difference"] is None
    assert seeds["verified"][name]["hits"] == 1


def walks_and_hashes(x, numbers):
    for number in numbers:
        x = x * 2 + number
    return x * (hash("refused") != 0)


def test_what_is_not_stored_walks_each_set_in_its_own_order(tmp_path):
    cached = cache_compile(walks_and_hashes, cache_dir=tmp_path)
    one, other = (set(numbers) for numbers in ([0, 8], [8, 0]))
    assert one == other
    assert list(one) != list(other)
    for numbers in (one, other, one):
        x = torch.ones(1)
        assert torch.equal(cached(x, numbers), walks_and_hashes(x, numbers))
    assert cached.cache_info().bypasses == 3
