"""Compiles one graph with the passes of a file, for which the user answers; prints what came of it.

python run_stated.py FOLDER HASH [--no-file]: `fusing.py` in FOLDER, and what the engine calls the
hash of its configuration ("" if it does not tell). `--no-file`: the module is made of a text.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import torch

from npugx_cache.integrations.vllm import NpugxCompiler
from npugx_cache.pieces import compiled
from tests.pieces import run_fusing


class Configuration:
    def compute_hash(self):
        return sys.argv[2]


def passes():
    folder = Path(sys.argv[1])
    if "--no-file" in sys.argv:
        module = sys.modules["fusing"] = types.ModuleType("fusing")
        exec((folder / "fusing.py").read_text(), vars(module))
    else:
        sys.path.insert(0, str(folder))
        import fusing as module
    return module, module.make_manager(2.5)


def main():
    module, manager = passes()

    def backend(graph, inputs):
        compiler = NpugxCompiler()
        compiler.compute_hash(Configuration() if sys.argv[2] else None)
        compiler.initialize_cache("/unused")
        return compiler.compile(graph, inputs, {"graph_fusion_manager": manager}, [1, 64])[0]

    torch.manual_seed(0)
    x, y, w = torch.randn(16, 8), torch.randn(16, 8), torch.randn(8, 8)
    for tensor in (x, y):
        torch._dynamo.mark_dynamic(tensor, 0)
    run = torch.compile(run_fusing.model, backend=backend, fullgraph=True)
    with torch.no_grad():
        run(x, y, w)
        with torch.profiler.profile() as profile:
            result = run(x, y, w)[0]
    expected = run_fusing.model(x, y, w, 2.5 * module.MODULE_FACTOR)[0]
    found = {
        "difference": float((result - expected).abs().max()),
        "info": list(compiled.counters.info(0)[:4]),
        "runs": module.Manager.runs,
        "fused": any(each.key == "fusing::muls_add" for each in profile.key_averages()),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
