"""A model whose weights hold other tensors, under torch.compile(backend="npugx"), and eager.

python holding.py KIND CHANGE prints what came of one call. `KIND` is "dispatch", where only
operators run code of the class, or "function", where Dynamo traces through a method of the class.
`CHANGE` is Python that runs before.
"""

from __future__ import annotations

import json
import logging
import sys

import kernels
import torch
from torch import nn

from npugx_cache import load_graph
from npugx_cache.pieces import compiled
from npugx_cache.portable import NotPortable


class Scaled(nn.Module):
    def __init__(self, make):
        super().__init__()
        weights = [make(torch.arange(6, dtype=torch.int8).view(2, 3) + n) for n in (0, 3)]
        self.weights = nn.ParameterList(nn.Parameter(w, requires_grad=False) for w in weights)

    def forward(self, x):
        for weight in self.weights:
            x = x * weight + 1
        return x


def alone(cached):
    """What comes of the graph without the inputs that it was found for."""
    if cached.entry is None:
        return []
    try:
        saved = type(cached).serialize_compile_artifacts(cached)
    except NotPortable as error:
        saved = error
    return [str(load_graph(cached.entry)), str(saved)[:60]]


def main(kind, change):
    warnings = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("npugx_cache").addHandler(handler)
    model = Scaled(kernels.Holding if kind == "dispatch" else kernels.Traced)
    exec(change, {"model": model, "kernels": kernels, "torch": torch})
    seen, made = [], []

    def looked_at(graph_module, inputs):
        seen.extend(type(each).__name__ for each in inputs)
        made.append(torch._dynamo.lookup_backend("npugx")(graph_module, inputs))
        return made[0]

    x = torch.arange(6.0).view(2, 3)
    with torch.no_grad():
        result, expected = torch.compile(model, backend=looked_at)(x), model(x)
    print(
        json.dumps(
            {
                "is_equal": torch.equal(result, expected),
                "result": result.flatten().tolist(),
                "takes": seen,
                "info": list(compiled.counters.info(0)[:4]),
                "warnings": warnings,
                "alone": alone(made[0]),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
