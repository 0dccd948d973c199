"""Old lines and new ones: from torch.compile, the vendor's cache and torchair. Run it twice.

docs/migration.md has all of them.
"""

import torch
from torch import nn

from npugx_cache import CachedFunction, cache_compile


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        # old: self.cached = torchair.inference.cache_compile(self.decode, config=config)
        self.cached = cache_compile(self.decode, dynamic=True)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.linear(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


torch.manual_seed(0)
model, x = Model().eval(), torch.ones(2, 8)
expected = model(x)

# old: opt_model = torch.compile(
opt_model = cache_compile(
    model, backend="npugraph_ex", fullgraph=True, dynamic=True, options={"capture_limit": 256}
)
torch.testing.assert_close(opt_model(x), expected)
print(f"result: {opt_model(x).sum():.4f}, {model.cached(x).sum():.4f}")
assert isinstance(opt_model.forward, CachedFunction)  # for type checkers
print("forward:", opt_model.forward.cache_info())
print("decode: ", model.cached.cache_info())

for old in ({"config": None}, {"mode": "reduce-overhead"}, {"backend": nn.Identity()}):
    try:
        cache_compile(model.decode, **old)
    except (TypeError, ValueError) as error:  # it says what to write
        print(error)
