"""Run rows of the zoo, plain and cached, in this process; print what happened, as JSON.

python run.py GROUP often|all
"""

import importlib.util
import json
import logging
import sys
import traceback
from pathlib import Path

import torch
import ways
import zoo

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("restart_run", HERE.parent / "restart" / "run.py")
restart = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(restart)


def values(result):
    """Plain containers of tensors and numbers; caches are compared where a way asks for it."""
    if isinstance(result, dict):
        return {k: values(v) for k, v in result.items() if "Cache" not in type(v).__name__}
    if isinstance(result, (list, tuple)):
        return [values(v) for v in result]
    return result


def frames():
    """How many frames Dynamo has traced; none while it is not even loaded."""
    if "torch._dynamo.utils" not in sys.modules:
        return 0
    counters = sys.modules["torch._dynamo.utils"].counters
    return counters["frames"]["total"] + counters["stats"]["unique_graphs"]


def build(row):
    torch.manual_seed(0)
    model = row.model.build().eval().to(getattr(torch, row.dtype))
    return model.encoder if type(model).__name__ == "WhisperModel" else model


def run(row):
    from npugx_cache import cache_compile

    model, way = build(row), ways.WAYS[row.way]
    with torch.no_grad():
        plain = values(way(model, model))
    before, seen = compilers(), frames()
    cached = cache_compile(model)
    with restart.warnings_logged() as lines:
        got = values(way(cached, cached))
    # Before anything is compared: that loads sympy.
    loaded, traced, info = compilers() - before, frames() - seen, model.forward.cache_info()
    return {
        "difference": restart.difference(plain, got),
        "digest": restart.digest(got),
        "hits": info.hits,
        "misses": info.misses,
        "bypasses": info.bypasses,
        "reasons": [str(reason) for reason in model.forward.explain()],
        "warnings": lines,
        "loaded": sorted(loaded),
        "frames": traced,
    }


def compilers():
    return {name for name in restart.COMPILERS if name in sys.modules}


def main(group, which):
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    results = {}
    for row in zoo.rows(zoo.GROUPS[int(group)]):
        if row.often or which == "all":
            try:
                results[str(row)] = run(row)
            except Exception:
                results[str(row)] = {"error": traceback.format_exc()}
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
