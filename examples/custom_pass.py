"""Rewrite graphs: a pass of your own, and a replacement of a pattern. Run it twice.

Both are part of what names an entry, with their code and the values that they capture: after an
edit of a pass the next start compiles.
"""

from typing import Any

import torch

from npugx_cache import cache_compile
from npugx_cache.backend import register_replacement


def square(x: torch.Tensor) -> torch.Tensor:
    return x.pow(2)


def product(x: torch.Tensor) -> torch.Tensor:
    return x * x


register_replacement(square, product, [torch.ones(2)])


def relu_for_clamp(graph_module: torch.fx.GraphModule, inputs: Any, config: Any) -> None:
    """Write `relu` where a graph has `clamp(min=0)`. In place; what it returns is ignored."""
    del inputs, config
    graph, clamp = graph_module.graph, torch.ops.aten.clamp.default
    for node in graph.find_nodes(op="call_function", target=clamp):
        if node.args[1:] == (0,) and not node.kwargs:
            node.target, node.args = torch.ops.aten.relu.default, node.args[:1]


@cache_compile(options={"post_grad_custom_post_pass": relu_for_clamp})
def loss(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(0).pow(2).sum()


x = torch.linspace(-1, 1, 8)
torch.testing.assert_close(loss(x), loss.__wrapped__(x))
print("result:", loss(x))
print(loss.cache_info())  # `npugx-cache readable loss` shows the graph: relu and mul
