"""Store Inductor's kernels instead of a graph of operators. Run it twice. CPU and Linux only.

The first run compiles a shared library with g++. The second one loads it: no Inductor, no C++
compiler.
"""

import sys

import torch

from npugx_cache import cache_compile


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return torch.nn.functional.silu(x * scale * weight)


cached = cache_compile(norm, backend="inductor", options={"max_autotune": False})
torch.manual_seed(0)
x, weight = torch.randn(4, 64), torch.randn(64)
result = cached(x, weight)
torch.testing.assert_close(result, norm(x, weight))
print(f"result: {result.sum():.4f}")
print("Inductor's compiler was loaded", "torch._inductor.compile_fx" in sys.modules, sep=": ")
print(cached.cache_info())
