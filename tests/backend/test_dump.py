"""Data dump: tensors of every call, cold and restarted, before or after the passes."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.thorough

CODE = """
import glob, json, sys, torch
from npugx_cache import cache_compile
def f(x):
    return (x * 2).clone() + 1
stage = sys.argv[1]
cached = cache_compile(f, options={"dump_tensor_data": True, "data_dump_stage": stage})
result = cached(torch.ones(3)).tolist()
files = sorted(glob.glob("worldsize1_global_rank0/*.pt"))
print(json.dumps({
    "result": result,
    "hits": cached.cache_info().hits,
    "compiler": "torch._dynamo" in sys.modules,
    "files": {name.rpartition("/")[2]: torch.load(name, weights_only=True).tolist()
              for name in files},
}))
"""


@pytest.mark.parametrize(
    ("stage", "names"),
    [("optimized", ["add_", "mul"]), ("original", ["add", "clone", "mul"])],
)
def test_results_of_calls_are_written_at_every_call_also_after_a_restart(
    surroundings, stage, names
):
    for start, hits in enumerate((0, 1)):
        folder = surroundings.folder / f"start{start}"
        cwd = surroundings.folder / "run"
        cwd.mkdir(exist_ok=True)
        done = surroundings.run("-c", CODE, stage, cwd=cwd)
        assert (done["result"], done["hits"]) == ([3.0, 3.0, 3.0], hits)
        found = sorted(name.partition("_device_")[0] for name in done["files"])
        assert [name.rstrip("_") for name in found] == [name.rstrip("_") for name in names]
        assert done["compiler"] is not bool(hits)
        assert [2.0] * 3 in done["files"].values()
        (cwd / "worldsize1_global_rank0").rename(folder)
