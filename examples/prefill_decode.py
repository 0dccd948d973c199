"""Serve with two graphs: one for prompts of any length, one for each further token. Run it twice.

Keys and values lie in buffers that are made once and written in place. On an NPU the decode step
has one shape, so that one captured graph serves all tokens.
"""

import torch
from torch import nn

from npugx_cache import cache_compile

WIDTH, LONGEST = 16, 32


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.query = nn.Embedding(64, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.key, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 64)

    @cache_compile(dynamic=True)
    def prefill(self, ids: torch.Tensor, kv: list[torch.Tensor]) -> torch.Tensor:
        return self.step(ids, torch.arange(ids.shape[0]), kv)

    @cache_compile(dynamic=False)
    def decode(self, ids: torch.Tensor, at: torch.Tensor, kv: list[torch.Tensor]) -> torch.Tensor:
        return self.step(ids, at, kv)

    def step(self, ids: torch.Tensor, at: torch.Tensor, kv: list[torch.Tensor]) -> torch.Tensor:
        x = self.embed(ids)
        kv[0].index_copy_(0, at, self.key(x))
        kv[1].index_copy_(0, at, self.value(x))
        later = torch.arange(LONGEST) > at[:, None]
        weights = (self.query(x) @ kv[0].T).masked_fill(later, -torch.inf).softmax(-1)
        return torch.argmax(self.head(x + weights @ kv[1])[-1:], -1)


torch.manual_seed(0)
model = Decoder().eval()
for length in (5, 9):  # both prompts share a graph
    kv = [torch.zeros(LONGEST, WIDTH) for _ in range(2)]
    token = model.prefill(torch.arange(length), kv)
    tokens = [int(token)]
    for position in range(length, length + 6):
        token = model.decode(token, torch.tensor([position]), kv)
        tokens.append(int(token))
    print("result:", tokens)
print("prefill:", model.prefill.cache_info())
print("decode: ", model.decode.cache_info())
