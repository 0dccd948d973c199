"""One graph for all sizes, and what happens without `dynamic=True`. Run it twice."""

import torch

from npugx_cache import cache_compile


def pooled(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kept = x * mask[..., None]
    return kept.sum(1) / mask.sum(1, keepdim=True)


any_size = cache_compile(pooled, dynamic=True)  # sizes are symbols at once
follows = cache_compile(pooled)  # as in torch.compile: static, then dynamic where sizes changed

torch.manual_seed(0)
for length in (4, 7, 12):
    x, mask = torch.randn(2, length, 8), torch.ones(2, length)
    result = any_size(x, mask)
    assert torch.equal(result, follows(x, mask))
    torch.testing.assert_close(result, pooled(x, mask))
    print(f"result for {length}: {result.sum():.4f}")
print("dynamic=True:", any_size.cache_info())  # one entry
print("dynamic=None:", follows.cache_info())  # two: the first size, and all further ones
