"""Operators of your own in a cached function. Run it twice.

An operator needs a kernel and a function that says the shape of the result. One that writes into
an argument names it in `mutates_args`.
"""

import torch

from npugx_cache import cache_compile


@torch.library.custom_op("examples::rotate", mutates_args=())
def rotate(x: torch.Tensor, by: int) -> torch.Tensor:
    return x.roll(by, -1)


@rotate.register_fake
def _(x: torch.Tensor, by: int) -> torch.Tensor:
    del by  # the shape does not depend on it
    return torch.empty_like(x)


@torch.library.custom_op("examples::remember", mutates_args=("history",))
def remember(history: torch.Tensor, x: torch.Tensor, at: int) -> None:
    history[at].copy_(x)


@cache_compile
def step(x: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
    y = rotate(x, 1) * 2
    remember(history, y, 0)
    return torch.add(y, history.sum(0))


x, history = torch.arange(4.0), torch.ones(2, 4)
print("result:", step(x, history))
print("result in history:", history.tolist())
print(step.cache_info())
