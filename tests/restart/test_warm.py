"""What `.warm(...)` answers about the call that it is given."""

from __future__ import annotations

import torch

from npugx_cache import Warmed, cache_compile


def test_warm_counts_the_entry_it_made_or_found(tmp_path):
    def scale(x):
        return x * 2

    def fresh():
        return cache_compile(scale, cache_dir=tmp_path)

    compiling = fresh()
    assert compiling.warm(torch.ones(3)) == Warmed(entries=1)
    assert compiling.warm(torch.ones(3)) == Warmed(entries=1)
    restoring = fresh()
    assert restoring.warm(torch.ones(3)) == Warmed(entries=1)
    assert restoring.cache_info()[:2] == (1, 0)


def test_warm_says_why_the_graph_of_a_call_is_not_stored(tmp_path):
    def noisy(x):
        return x + torch.rand(3)

    def fresh():
        return cache_compile(noisy, cache_dir=tmp_path).warm(torch.ones(3))

    for entries, graphs, (reason,) in (fresh(), fresh()):
        assert (entries, graphs) == (0, 0)
        assert "aten.rand.default draws random numbers" in reason


def test_warm_says_that_the_folder_is_at_fault():
    def scale(x):
        return x * 2

    entries, _, (reason,) = cache_compile(scale, cache_dir="/dev/null/no").warm(torch.ones(3))
    assert entries == 0
    assert reason.startswith("the store is not used: ")
