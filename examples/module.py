"""Cache a module, and a method beside it. Run it twice: the second run traces nothing."""

import torch
from torch import nn

from npugx_cache import CachedFunction, cache_compile


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, self.down(nn.functional.gelu(self.up(x))))

    @cache_compile  # a method: each object has graphs of its own
    def score(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cosine_similarity(self.up(x), self.up(y))


torch.manual_seed(0)
encoder = Encoder().eval()
x, y = torch.randn(4, 16), torch.randn(4, 16)
expected = encoder(x)

cache_compile(encoder)  # in place: the module stays what it is, with its weights and hooks
assert isinstance(encoder.forward, CachedFunction)  # for type checkers
encoder.forward.warm(x)  # restore or compile before the first request
result = encoder(x)
torch.testing.assert_close(result, expected)
print("result:", result.sum())
print("result of score:", encoder.score(x, y))
print("forward:", encoder.forward.cache_info())
print("score:  ", encoder.score.cache_info())
