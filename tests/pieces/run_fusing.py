"""Compiles one graph with the passes of `fusing.py`, in several forms, and prints what came of it.

python run_fusing.py FORMS: a JSON file with a text of the module, a scale and a range for each.
"""

from __future__ import annotations

import json
import logging
import sys
import types
from pathlib import Path

import torch

from npugx_cache.integrations.vllm import NpugxCompiler
from npugx_cache.pieces import compiled

library = torch.library.Library("fusing", "DEF")
library.define("muls_add(Tensor x, Tensor y, float scale) -> Tensor")


def muls_add(x, y, scale):
    return torch.add(torch.mul(x, scale), y)


library.impl("muls_add", muls_add, "CPU")
torch.library.register_fake("fusing::muls_add", lambda x, y, scale: torch.empty_like(x))


def model(x, y, w, scale=2.5):
    return (torch.relu(x @ w) * scale + y,)


def writing(x, y, w, scale=2.5):
    w.add_(1.0)
    return (torch.relu(x @ w) * scale + y,)


def compile_form(text, scale, sizes, function, config, factor):
    module = types.ModuleType("fusing")
    sys.modules["fusing"] = module
    exec(compile(text, "fusing.py", "exec"), vars(module))
    manager = module.make_manager(scale)
    before, got = compiled.counters.info(0)[:4], {}

    def backend(graph, inputs):
        compiler = NpugxCompiler()
        compiler.initialize_cache("/unused")
        run, handle = compiler.compile(graph, inputs, {config: manager}, sizes)
        got.update(handle=handle)
        return run

    torch._dynamo.reset()
    x, y, w = torch.randn(16, 8), torch.randn(16, 8), torch.randn(8, 8)
    for tensor in (x, y):
        torch._dynamo.mark_dynamic(tensor, 0)
    run = torch.compile(function, backend=backend, fullgraph=True)
    with torch.no_grad():
        run(x, y, w.clone())
        with torch.profiler.profile() as profile:
            result = run(x, y, w.clone())[0]
    expected = function(x, y, w.clone(), 2.5 * factor)[0]
    now = compiled.counters.info(0)[:4]
    return {
        "difference": float((result - expected).abs().max()),
        "info": [a - b for a, b in zip(now, before, strict=True)],
        "runs": module.Manager.runs,
        "fused": any(each.key == "fusing::muls_add" for each in profile.key_averages()),
        "handle": got["handle"] is not None,
        "left": sorted(vars(manager.passes[0])),
    }


def main(file):
    warnings = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("npugx_cache").addHandler(handler)
    torch.manual_seed(0)
    found = {}
    for name, form in json.loads(file.read_text()).items():
        warnings.clear()
        function = writing if form.get("writes") else model
        config = form.get("config", "graph_fusion_manager")
        found[name] = compile_form(
            form["text"],
            form.get("scale", 2.5),
            form.get("sizes", [1, 64]),
            function,
            config,
            form.get("factor", 1.0),
        )
        found[name]["warnings"] = list(warnings)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
