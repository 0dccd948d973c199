"""Run as a script: attention over a growing cache, through the cache, as JSON."""

import json
import sys

import attention
import torch

from npugx_cache import cache_compile


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(4, 4)

    def forward(self, x, keys, values, at, length: int):
        keys.index_copy_(1, at, x)
        values.index_copy_(1, at, x * 2)
        return self.project(
            torch.ops.npu.npu_fused_infer_attention_score(
                x, keys, values, actual_seq_lengths_kv=[length + 1, length + 1], scale=0.5
            )[0]
        )


def steps(decode, decoder):
    """By how much five steps differ from a plain computation."""
    torch.manual_seed(1)
    keys, values = torch.zeros(2, 9, 4).npu(), torch.zeros(2, 9, 4).npu()
    worst = 0.0
    for length in range(2, 7):
        x, at = torch.randn(2, 1, 4).npu(), torch.tensor([length]).npu()
        got = decode(x, keys, values, at, length).cpu()
        want = attention.attend(x.cpu(), keys.cpu(), values.cpu(), [length + 1] * 2, 0.5)
        with torch.no_grad():
            want = torch.nn.functional.linear(
                want, decoder.project.weight.cpu(), decoder.project.bias.cpu()
            )
        worst = max(worst, (got - want).abs().max().item())
    return worst


if __name__ == "__main__":
    torch.manual_seed(0)
    decoder = Decoder().eval().npu()
    cached = cache_compile(decoder.forward, dynamic=True)
    worst = steps(cached, decoder)
    info = cached.cache_info()
    print(
        json.dumps(
            {
                "worst": worst,
                "hits": info.hits,
                "misses": info.misses,
                "bypasses": info.bypasses,
                "replays": [graph.replays for graph in info.graphs],
                "shapes": [graph.shape for graph in info.graphs],
                "compiler": "torch._dynamo.convert_frame" in sys.modules,
            }
        )
    )
