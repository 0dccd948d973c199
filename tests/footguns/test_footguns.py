"""Behaviours that surprise, each with today's outcome. A change of one of them is a decision.

"Silent" means: nothing is raised or logged. A mismatch is one against eager.

| footgun | outcome | what to do |
|---|---|---|
| results never require grad | silent mismatch | call the function itself where you train |
| a first size is static | silent, a second compile | `dynamic=True`, or `.warm()` with both |
| a size of one is never dynamic | silent, one more compile | pad, or accept the entry |
| sets that are equal have another order | silent, an entry for each order | sort what is walked |
| a list that grows is an argument | silent, a compile for each length up to a limit | keep it out |
| a counter in a module | silent, a compile for each value up to a limit | count outside of it |
| `1`, `True` and `1.0` are three values | silent, an entry each | pass one type |
| a hook on a submodule | none: the hook runs (torch.compile misses it) | - |
| a cached `forward` skips the module's hooks | silent, as in eager | cache and call the module |
| `guards="inputs_unsafe"` and a changed attribute | silent mismatch | use `guards="full"` |
| results that share memory with an input | none: as in eager | - |
| nothing is compiled before the first call | silent | `.warm(...)` |
| a kernel raises after objects were changed | raised; objects are unchanged | don't count on them |
| an error of a call that nothing uses | silent mismatch: not raised | `remove_dead_ops=False` |
| a stale `lru_cache` | eager's result, uncached while stale | clear it when its inputs change |
"""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from npugx_cache import cache_compile


def doubled(x):
    return x * 2


def test_results_never_require_grad(tmp_path):
    cached = cache_compile(doubled, cache_dir=tmp_path)
    x = torch.ones(2, requires_grad=True)
    assert doubled(x).requires_grad
    assert not cached(x).requires_grad


def tripled(x):
    return x * 3


def test_a_first_size_is_static_and_a_second_makes_a_second_entry(tmp_path):
    cached = cache_compile(tripled, cache_dir=tmp_path)
    for size in (3, 4, 5, 6):
        cached(torch.ones(size))
    assert cached.cache_info().misses == 2  # static, then dynamic for all further sizes


def test_a_size_of_one_is_never_dynamic(tmp_path):
    cached = cache_compile(doubled, cache_dir=tmp_path, dynamic=True)
    for size in (4, 5, 1):
        cached(torch.ones(size))
    assert cached.cache_info().misses == 2


def walks(x, numbers):
    for number in numbers:
        x = x * 2 + number
    return x


def test_equal_sets_that_are_walked_in_another_order_get_an_entry_each(tmp_path):
    """Sets of strings have another order in each process: sort what is walked, or pin the seed."""
    cached = cache_compile(walks, cache_dir=tmp_path)
    one, other = set([0, 8]), set([8, 0])  # noqa: C405 - the order in which they are filled counts
    assert one == other
    assert list(one) != list(other)
    for numbers in (one, other, one):
        assert torch.equal(cached(torch.ones(1), numbers), walks(torch.ones(1), numbers))
    assert (cached.cache_info().misses, cached.cache_info().bypasses) == (2, 0)


def says(x, log):
    log.append(len(log))
    return x * 2


def test_the_length_of_a_list_that_grows_is_guarded(tmp_path):
    cached = cache_compile(says, cache_dir=tmp_path)
    log: list[int] = []
    for _ in range(3):
        cached(torch.ones(1), log)
    assert log == [0, 1, 2]
    assert cached.cache_info().misses == 3  # a compile for each length


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * 2


def test_a_counter_in_a_module_is_compiled_anew_for_each_value(tmp_path):
    """As in torch.compile. Count outside of the cached function, or in a tensor."""
    model = Counting()
    cached = cache_compile(model.forward, cache_dir=tmp_path)
    for _ in range(4):
        cached(torch.ones(1))
    assert model.calls == 4
    assert cached.cache_info().misses == 4


def scaled(x, factor):
    return x * factor


def test_true_is_not_one_and_a_float_is_not_an_int(tmp_path):
    cached = cache_compile(scaled, cache_dir=tmp_path, dynamic=False)
    for factor in (1, True, 1.0):
        cached(torch.ones(1), factor)
    assert cached.cache_info().misses == 3


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x):
        return self.inner(x) * 2


def test_a_hook_on_a_submodule_is_seen_where_torch_compile_misses_it(tmp_path):
    model = Hooked()
    cached = cache_compile(model.forward, cache_dir=tmp_path)
    cached(torch.ones(1))
    model.inner.register_forward_hook(lambda module, args, out: out + 1)
    assert cached(torch.ones(1)).item() == 4


def test_a_cached_forward_runs_without_the_hooks_of_its_module(tmp_path):
    """They belong to `Module.__call__`: call the module, not its forward."""
    model = Hooked()
    model.register_forward_hook(lambda module, args, out: out + 1)
    cached = cache_compile(model.forward, cache_dir=tmp_path)
    assert cached(torch.ones(1)).item() == 2
    assert cache_compile(model, cache_dir=tmp_path)(torch.ones(1)).item() == 3


def test_inputs_unsafe_does_not_see_a_changed_attribute(tmp_path):
    model = Counting()
    model.factor = 2
    cached = cache_compile(lambda x: x * model.factor, cache_dir=tmp_path, guards="inputs_unsafe")
    assert cached(torch.ones(1)).item() == 2
    model.factor = 3
    assert cached(torch.ones(1)).item() == 2  # wrong, as its name says


def parts(x):
    return x, x.view(-1)


def test_results_share_memory_with_the_input_as_in_eager(tmp_path):
    x = torch.ones(2)
    same, view = cache_compile(parts, cache_dir=tmp_path)(x)
    assert same is x
    assert view.data_ptr() == x.data_ptr()


def test_outside_of_a_call_nothing_is_compiled(tmp_path):
    cached = cache_compile(doubled, cache_dir=tmp_path)
    assert cached.cache_info()[:6] == (0, 0, 0, 0, 0, ())
    cached.warm(torch.ones(1))
    assert cached.cache_info().misses == 1


class Looked(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 2)
        self.calls = 0

    def forward(self, x, index):
        self.calls += 1
        x.add_(1)
        return x + self.table(index)


def test_before_an_error_of_a_kernel_tensors_are_written_but_objects_are_not(tmp_path):
    """As in torch.compile, objects are changed after the graph; eager would count the call."""
    for wrap, counted in ((lambda f: f, 1), (lambda f: cache_compile(f, cache_dir=tmp_path), 0)):
        model, x = Looked(), torch.zeros(2)
        call = wrap(model.forward)
        with pytest.raises(IndexError), torch.no_grad():
            call(x, torch.tensor([9]))
        assert torch.equal(x, torch.ones(2))
        assert model.calls == counted


def without_use(x):
    torch.relu(x) - True
    return x + 1


def test_an_error_of_a_call_that_nothing_uses_comes_only_where_it_is_kept(tmp_path):
    x = torch.ones(2)
    assert torch.equal(cache_compile(without_use, cache_dir=tmp_path)(x), x + 1)
    kept = cache_compile(without_use, cache_dir=tmp_path, options={"remove_dead_ops": False})
    for call in (without_use, kept):
        with pytest.raises(RuntimeError, match="Subtraction"):
            call(x)


factors = [2]


@functools.lru_cache
def remembered():
    return factors[0]


def times_what_is_remembered(x):
    return x * remembered()


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_what_an_lru_cache_remembers_stays_as_in_eager(tmp_path):
    """Dynamo traces through it, so a result that is stale in eager would be fresh here."""
    cached = cache_compile(times_what_is_remembered, cache_dir=tmp_path)
    x = torch.ones(1)
    assert (cached(x).item(), times_what_is_remembered(x).item()) == (2, 2)
    factors[0] = 5
    assert (cached(x).item(), times_what_is_remembered(x).item()) == (2, 2)
