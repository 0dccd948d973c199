"""Attention of tokens of several sequences, and with rows that all of them begin with.

One graph for all lengths on the host; eager and the vendor's compiler give the same.
"""

import os

import pytest

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)

import attention
import npu_sim
import torch
from attention import SEEN, UPDATE

from npugx_cache import cache_compile
from npugx_cache.backend import scope


def split(query, keys, values, table, contexts, mask, counts, out):
    torch.ops.atb._npu_paged_attention_splitfuse(
        query * 2, keys, values, table, contexts, mask, counts, 1, 1, 0.5, out
    )
    return out + 1


def of_sequences(contexts, counts, tokens=6):
    """What `split` is called with. There are more rows for tokens than tokens."""
    query, keys, values, mask = (
        torch.randn(*size).npu() for size in ((tokens, 1, 4), (3, 9, 4), (3, 9, 4), (tokens, 9))
    )
    table = torch.tensor([[2], [0], [1]], dtype=torch.int32)[: len(counts)].npu()
    lengths = [torch.tensor(each, dtype=torch.int32) for each in (contexts, counts)]
    return query, keys, values, table, lengths[0], mask, lengths[1], torch.zeros(tokens, 1, 4).npu()


STEPS = [([2, 5], [1, 3]), ([3, 6], [1, 1]), ([9, 7], [2, 4]), ([4, 4], [0, 6])]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def run(function, arguments):
    """The result, and what was issued about tasks and replays."""
    with torch.no_grad(), npu_sim.issued() as found:
        result = function(*arguments)
    return result.cpu(), [each.what for each in found if each.what in SEEN]


def test_contexts_and_counts_of_sequences_are_updated(tmp_path):
    cached = cache_compile(split, dynamic=True, cache_dir=tmp_path)
    for contexts, counts in STEPS:
        arguments = of_sequences(contexts, counts)
        eager = split(*arguments).cpu()
        tensors = [each.cpu() for each in arguments]
        query, keys, values, table, _, mask, _, _ = tensors
        plain = attention.split(query * 2, keys, values, table, contexts, mask, counts, 0.5)
        torch.testing.assert_close(eager, plain + 1)
        got, issued = run(cached, arguments)
        assert torch.equal(got, eager)
        assert torch.equal(arguments[-1].cpu() + 1, eager)
        assert issued[-4:] == ["replay", *UPDATE[:3]]
    info = cached.cache_info()
    assert (info.misses, info.bypasses) == (1, 0)
    restored = cache_compile(split, dynamic=True, cache_dir=tmp_path)
    for contexts, counts in reversed(STEPS):
        arguments = of_sequences(contexts, counts)
        assert torch.equal(restored(*arguments).cpu(), split(*arguments).cpu())
    info = restored.cache_info()
    assert (info.hits, info.misses, info.bypasses) == (1, 0, 0)


def test_one_graph_takes_all_lengths_of_as_many_sequences(tmp_path):
    options = {"clone_input": True}
    cached = cache_compile(split, dynamic=True, cache_dir=tmp_path, options=options)
    out = torch.zeros(6, 1, 4).npu()
    for contexts, counts in STEPS:
        arguments = (*of_sequences(contexts, counts)[:-1], out)
        assert torch.equal(run(cached, arguments)[0], split(*arguments).cpu())
    assert [graph.replays for graph in cached.cache_info().graphs] == [len(STEPS)]


def prefixed(q, k, v, first, last, asked, length, prefix):
    return torch.ops.npu.npu_fused_infer_attention_score(
        q * 2, k, v, key_shared_prefix=first, value_shared_prefix=last, scale=0.5,
        actual_seq_lengths=[asked, 3], actual_seq_lengths_kv=[length, 4],
        actual_shared_prefix_len=[prefix], input_layout="BSH",
    )[0]  # fmt: skip


def with_a_prefix():
    sizes = (2, 3, 4), (2, 8, 4), (2, 8, 4), (1, 6, 4), (1, 6, 4)
    return tuple(torch.randn(*size).npu() for size in sizes)


def computed(q, k, v, first, last, asked, length, prefix):
    return prefixed(q, k, v, first, last, asked - 1, length * 2, prefix // 2 + 1)


PREFIXES = [(2, 3, 4), (3, 4, 5), (4, 2, 3), (2, 4, 2), (3, 3, 6)]


def test_the_length_of_a_shared_prefix_is_updated(tmp_path):
    cached = cache_compile(prefixed, dynamic=True, cache_dir=tmp_path)
    theirs = torch.compile(prefixed, backend="npugraph_ex", dynamic=True)
    tensors = with_a_prefix()
    for numbers in PREFIXES:
        eager = prefixed(*tensors, *numbers).cpu()
        (got, seen), (want, issued) = (run(each, (*tensors, *numbers)) for each in (cached, theirs))
        assert torch.equal(got, eager)
        assert torch.equal(want, eager)
        assert seen == issued
        assert issued[-3:] == UPDATE[:3]
    info = cached.cache_info()
    assert (info.misses, info.bypasses) == (1, 0)
    assert [graph.replays for graph in info.graphs] == [len(PREFIXES)]


def test_what_is_computed_of_numbers_is_updated_too(tmp_path):
    tensors = with_a_prefix()
    for misses, used in ((1, PREFIXES), (0, PREFIXES[2:])):
        cached = cache_compile(computed, dynamic=True, cache_dir=tmp_path)
        for numbers in used:
            eager = computed(*tensors, *numbers).cpu()
            assert torch.equal(run(cached, (*tensors, *numbers))[0], eager)
        info = cached.cache_info()
        assert (info.misses, info.bypasses) == (misses, 0)
        assert [graph.replays for graph in info.graphs] == [len(used)]


def at_a_level(q, k, v, length):
    with scope.deterministic(2):
        one = attention.score(q, k, v, [length, 2])
    return one + attention.score(q, k, v, [3, length])


def test_tasks_are_updated_at_the_level_of_their_scope(tmp_path):
    cached, tensors = (
        cache_compile(at_a_level, dynamic=True, cache_dir=tmp_path),
        attention.inputs(),
    )
    for length in (2, 4, 5):
        with torch.no_grad(), npu_sim.issued() as found:
            got = cached(*tensors, length)
        assert torch.equal(got.cpu(), at_a_level(*tensors, length).cpu())
    assert [graph.replays for graph in cached.cache_info().graphs] == [3]
    seen = [
        each[:2] for each in found if each.what in ("update begin", "update end", "deterministic")
    ]
    assert seen == [
        ("update begin", 0), ("deterministic", 2), ("update end", 0),
        ("update begin", 0), ("update end", 0),
    ]  # fmt: skip
    assert not torch.are_deterministic_algorithms_enabled()
