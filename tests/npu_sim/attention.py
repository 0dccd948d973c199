"""Attention operators of torch_npu with kernels, for lengths on the host. Counts their calls."""

from __future__ import annotations

from collections import Counter

import npu_sim
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npugx_cache.backend.capture.updatable import UPDATABLE
from npugx_cache.backend.compile import compile_graph

npu_sim.install()
calls: Counter[str] = Counter()


def attend(query, key, value, lengths, scale):
    """Batch by batch over the first `length` rows of key and value: [batch, rows, width]."""
    if any(length < 0 for length in lengths):
        raise ValueError(f"a length below 0: {lengths}")
    result = torch.empty_like(query)
    for row, length in enumerate(lengths):
        weights = (query[row] @ key[row, :length].T * scale).softmax(-1)
        result[row] = weights @ value[row, :length]
    return result


def _with_prefix(key, value, given):
    """Rows that all batches begin with, and the lengths with theirs."""
    lengths = given["lengths"]
    if given.get("key_shared_prefix") is None:
        return key, value, lengths
    first, count = given["key_shared_prefix"], given["value_shared_prefix"].shape[1]
    if given.get("actual_shared_prefix_len") is not None:
        (count,) = given["actual_shared_prefix_len"]
    shared = (
        each[:, :count].expand(len(key), -1, -1) for each in (first, given["value_shared_prefix"])
    )
    key, value = (torch.cat(pair, 1) for pair in zip(shared, (key, value), strict=True))
    return key, value, [length + count for length in lengths]


def _computed(query, key, value, given):
    scale = given.get("softmax_scale") or given.get("scale", 1.0)
    result = attend(query, *_with_prefix(key, value, given), scale)
    for row, length in enumerate(given.get("actual_seq_lengths") or ()):
        result[row, length:] = 0
    return result


def _kernel(name, lengths):
    def out(query, key, value, *, workspace, out, **kwargs):
        calls[name] += 1
        assert workspace.numel() == 16
        given = [kwargs.get(each) for each in UPDATABLE[f"npu::{name}.out"]]
        assert all(type(each) is int for several in given for each in several or ())
        out[0].copy_(_computed(query, key, value, {**kwargs, "lengths": kwargs[lengths]}))
        return tuple(out)

    def default(query, key, value, **kwargs):
        calls["default"] += 1
        result = _computed(query, key, value, {**kwargs, "lengths": kwargs[lengths]})
        return result, query.new_zeros(1)

    def workspace(*_, **__):
        return torch.zeros(16, dtype=torch.uint8)

    npu_sim.route("npu", f"{name}.out", out)
    npu_sim.route("npu", name, default)
    npu_sim.route("npu", f"_{name}_get_max_workspace", workspace)


_kernel("npu_fused_infer_attention_score", "actual_seq_lengths_kv")
_kernel("npu_fused_infer_attention_score_v2", "actual_seq_kvlen")


def _paged(query, keys, values, kv_heads, heads, scale, table, lengths, out, *, workspace=None):
    calls["paged"] += 1
    out.copy_(attend(query, keys, values, lengths.tolist(), scale))


npu_sim.route("atb", "_npu_paged_attention", _paged)


def split(query, keys, values, table, contexts, mask, counts, scale):
    """Tokens of all sequences one after the other: [tokens, 1, width], `counts` of each."""
    sequences = [row for row, count in enumerate(counts) for _ in range(count)]
    result = torch.zeros_like(query)
    for token, row in enumerate(sequences):
        block, length = int(table[row, 0]), contexts[row]
        weights = query[token] @ keys[block, :length].T * scale + mask[token, :length]
        result[token] = weights.softmax(-1) @ values[block, :length]
    return result


def _split(query, keys, values, table, contexts, mask, counts, kv_heads, heads, scale, out):
    calls["split"] += 1
    given = contexts.tolist(), mask, counts.tolist()
    out.copy_(split(query, keys, values, table, *given, scale))


npu_sim.route("atb", "_npu_paged_attention_splitfuse", _split)


def inputs(rows=8, batch=2):
    made = [torch.randn(batch, n, 4).npu() for n in (1, rows, rows)]
    return tuple(made)


def score(q, k, v, lengths):
    return torch.ops.npu.npu_fused_infer_attention_score(
        q, k, v, actual_seq_lengths_kv=lengths, scale=0.5, input_layout="BSH"
    )[0]


def score_v2(q, k, v, lengths):
    return torch.ops.npu.npu_fused_infer_attention_score_v2(
        q, k, v, actual_seq_kvlen=lengths, softmax_scale=0.5, input_layout="BSH"
    )[0]


def compiled(function, *examples, **options):
    with torch.no_grad():
        graph = make_fx(function, tracing_mode="symbolic")(*examples)
    return compile_graph(graph, None, options)


WAITING = ["external wait", "external reset"]
CAPTURE = [*WAITING, "group begin", "group end"] * 2
UPDATE = ["update begin", "update end", "external record"] * 2
SEEN = {"replay", *CAPTURE, *UPDATE}
