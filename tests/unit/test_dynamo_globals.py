"""What Dynamo puts among the globals of the user's module does not outlive what needs it."""

import collections
import gc
import threading

import pytest
import torch

from npugx_cache import cache_compile

SET = {1.5, object()}
"""No name leads to one of its elements in another process."""

__compiled_fn_of_the_users = __builtins_dict___of_the_users = 7


def plain(x, scale):
    return torch.nn.functional.relu(x) * scale + len(collections.OrderedDict(a=1))


def of_this_process(x, number):
    return x * number + len(collections.OrderedDict(c=3)) * (2.5 not in SET)


def branching(x):
    return x + 1 if x.sum() > 0 else x - 1


def beside(x):
    return x * 3 + len(collections.OrderedDict(b=2))


@pytest.fixture
def cached(tmp_path):
    def made(function, **options):
        return cache_compile(function, backend="aot_eager", cache_dir=tmp_path / "cache", **options)

    return made


def left(before=()):
    """The names among the globals of this module that only a trace makes."""
    gc.collect()
    return {n for n in globals() if n.startswith(("__compiled", "__builtins_dict", "___"))} - {
        *before,
        "__compiled_fn_of_the_users",
        "__builtins_dict___of_the_users",
    }


def test_compiles_leave_none_of_dynamos_globals(cached):
    before, f = left(), cached(plain, dynamic=False)
    for size in (2, 3, 4):
        assert torch.equal(f(torch.ones(size), 2.0), torch.full((size,), 3.0))
    assert f.cache_info().misses == 3
    assert left(before) == set()
    assert __compiled_fn_of_the_users == __builtins_dict___of_the_users == 7


def test_a_trace_that_fails_leaves_none(cached):
    before, f = left(), cached(branching)
    assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0))
    assert f.cache_info().bypasses == 1
    assert left(before) == set()


def test_what_only_this_process_runs_keeps_its_globals_as_long_as_it_lives(cached):
    before, f = left(), cached(of_this_process, dynamic=False)
    for number in (1.0, 2.0, 3.0):
        found = f(torch.full((2,), number), 4)
        assert torch.equal(found, torch.full((2,), 4 * number + 1))
    assert (f.cache_info().stored, f.cache_info().misses) == (0, 0)
    compiled = {name for name in left(before) if name.startswith("__compiled_fn")}
    assert len(compiled) == 1  # the graph that ran
    del f
    assert left(before) == set()


def test_the_globals_of_a_torch_compile_beside_stay(cached):
    compiled = torch.compile(beside, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        compiled(torch.ones(2))
        its, f = left(), cached(beside)
        assert its
        f(torch.ones(2))
        assert left() == its
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))


def test_names_that_another_thread_makes_during_a_trace_stay():
    from torch._dynamo.utils import CleanupHook

    from npugx_cache.trace.dynamo_globals import DynamoGlobals

    scope = {}
    with DynamoGlobals().collect_globals():
        CleanupHook.create(scope, "ours", 1)
        thread = threading.Thread(target=CleanupHook.create, args=(scope, "theirs", 2))
        thread.start()
        thread.join()
        assert scope == {"ours": 1, "theirs": 2}
    assert scope == {"theirs": 2}
