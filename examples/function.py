"""Cache a function. Run it twice: the first run compiles, the second one traces nothing."""

import torch

from npugx_cache import cache_compile


@cache_compile
def attend(query: torch.Tensor, key: torch.Tensor, scale: float = 0.5) -> torch.Tensor:
    weights = (query @ key.mT * scale).softmax(-1)
    return weights @ key


torch.manual_seed(0)
query, key = torch.randn(2, 4, 8), torch.randn(2, 6, 8)
result = attend(query, key)
torch.testing.assert_close(result, attend.__wrapped__(query, key))
print("result:", result.sum())
print(attend.cache_info())  # the first run: misses=1, stored=1; the second: hits=1
for reason in attend.explain():  # what the last lookup came to
    print(reason)
