"""A worker that stores, loads and saves graphs. Prints JSON.

python graphs.py store | load ENTRY HELD | unpickle
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

torch.manual_seed(0)
X, W, HELD = torch.randn(4, 8), torch.randn(8, 8), torch.full((8,), 0.123456789)
COMPILERS = ("torch._dynamo", "torch._inductor", "sympy", "npugx_cache.backend.lowering")


def plain(x, w):
    return torch.nn.functional.gelu(x @ w) + x.shape[0]


def differentiable(x, w):
    return (x @ w).sigmoid(), x.detach()


def holding():
    """A graph that holds a tensor, and writes to it."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    held = graph.get_attr("held")
    added = graph.call_function(torch.ops.aten.add_.Tensor, (held, 1.0))
    graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (x, added)),))
    module = torch.nn.Module()
    module.register_buffer("held", HELD.clone())
    return torch.fx.GraphModule(module, graph)


def store():
    from torch.fx.experimental.proxy_tensor import make_fx

    import npugx_cache

    with torch.no_grad():
        traced = make_fx(plain)(X, W)
        first = npugx_cache.cached_graph(traced, [X, W])
        again = npugx_cache.cached_graph(make_fx(lambda a, b: plain(a, b))(X, W), [X, W])
        module = holding()
        held = npugx_cache.cached_graph(module, [X])
        (product,) = held(X)
        dynamic = npugx_cache.cached_graph(make_fx(plain, tracing_mode="symbolic")(X, W), [X, W])
    compiled = torch.compile(differentiable, backend="npugx", fullgraph=True)
    if hasattr(compiled, "aot_compile"):  # since torch 2.12
        saved = compiled.aot_compile(((X.clone().requires_grad_(), W), {}))
        saved.save_compiled_function("graph.bin")
    return {
        "saved": hasattr(compiled, "aot_compile"),
        "right": torch.equal(first(X, W), plain(X, W)) and torch.equal(dynamic(X, W), plain(X, W)),
        "entries": [first.entry, again.entry, held.entry],
        "explained": [list(each.reasons) for each in again.explain()],
        "product": torch.equal(product, X * (HELD + 1)),
        "written": torch.equal(module.held, HELD + 1),
    }


def load(entry, holding_entry):
    import npugx_cache
    from npugx_cache import store

    found = {}
    with torch.no_grad():
        graph = npugx_cache.load_graph(entry)
        found["right"] = torch.equal(graph(X, W), plain(X, W))
        own = HELD.clone()
        holds = npugx_cache.load_graph(holding_entry, held=[own])
        found["product"] = torch.equal(holds(X)[0], X * (HELD + 1)) and torch.equal(own, HELD + 1)
        misses = {
            "held": npugx_cache.load_graph(holding_entry),
            "gone": npugx_cache.load_graph("0123456789abcdef"),
            "option": npugx_cache.load_graph(entry, options={"inplace_pass": False}),
            "backend": npugx_cache.load_graph(entry, backend="aot_eager"),
        }
        torch.set_float32_matmul_precision("high")
        misses["switch"] = npugx_cache.load_graph(entry)
        torch.set_float32_matmul_precision("highest")
        torch.set_default_dtype(torch.float64)
        misses["state"] = npugx_cache.load_graph(entry)
        torch.set_default_dtype(torch.float32)
        torch.Tensor.__bool__, kept = lambda self: True, torch.Tensor.__bool__
        misses["patched"] = npugx_cache.load_graph(entry)
        torch.Tensor.__bool__ = kept
    assert all(isinstance(each, store.Miss) for each in misses.values())
    found["misses"] = {name: each.reason for name, each in misses.items()}
    found["compilers"] = [name for name in COMPILERS if name in sys.modules]
    return found


def unpickle():
    found = {"precision": None, "right": None}
    torch.set_float32_matmul_precision("high")
    try:
        loaded()
    except Exception as error:
        found["precision"] = f"{type(error).__name__}: {error}"
    torch.set_float32_matmul_precision("highest")
    x = X.clone().requires_grad_()
    result, detached = loaded()(x, W)
    found["right"] = torch.equal(result, differentiable(X, W)[0]) and torch.equal(detached, X)
    found["grad"] = [result.requires_grad, detached.requires_grad]
    try:
        result.sum().backward()
    except RuntimeError as error:
        found["backward"] = str(error)
    return found


def loaded():
    with Path("graph.bin").open("rb") as file:
        return torch.compiler.load_compiled_function(file)


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print(json.dumps(globals()[name](*arguments)))
