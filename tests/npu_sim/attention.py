"""Attention operators of torch_npu with kernels, for lengths on the host. Counts their calls."""

from __future__ import annotations

from collections import Counter

import npu_sim
import torch
from torch.fx.experimental.proxy_tensor import make_fx

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


def _kernel(name, lengths):
    def out(query, key, value, *, scale=1.0, softmax_scale=None, workspace, out, **kwargs):
        calls[name] += 1
        assert workspace.numel() == 16
        assert all(type(each) is int for each in kwargs[lengths])
        scale = scale if softmax_scale is None else softmax_scale
        out[0].copy_(attend(query, key, value, kwargs[lengths], scale))
        return tuple(out)

    def default(query, key, value, *, scale=1.0, softmax_scale=None, **kwargs):
        calls["default"] += 1
        scale = scale if softmax_scale is None else softmax_scale
        return attend(query, key, value, kwargs[lengths], scale), query.new_zeros(1)

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
