"""Run an edited example eagerly and cached, in two precisions, and print JSON.

python run_example.py FOLDER DEVICE CACHED RESULT ...

Each script of the folder is run as the main program that it is: first eagerly, with a
`cache_compile` that gives back what it is given, and then as it stands. CACHED is an expression for
what the script caches; it is empty if the script uses `torch.compile` alone.
"""

import gc
import hashlib
import json
import sys
from pathlib import Path

import torch

folder, device, cached, *results = sys.argv[1:]
if device == "npu":
    import graph_engine
    import npu_sim

    npu_sim.install()
    graph_engine.install()

from torch._dynamo.utils import counters  # noqa: E402

from npugx_cache.backend.capture.captured import CapturedGraph  # noqa: E402

IMPORT = "from npugx_cache import cache_compile"
EAGER = "cache_compile = lambda model, **_: model"
MORE = "import os\nimport given\n"


def flat(value):
    """The tensors and texts in a result, in order."""
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in flat(each)]
    return [value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value]


def run(script, text, names):
    torch.manual_seed(0)
    exec(compile(text, script, "exec"), names)
    found = [names[name] for name in results]
    return flat(found), needing_grad(found)


def needing_grad(value):
    if isinstance(value, (list, tuple)):
        return [needed for each in value for needed in needing_grad(each)]
    return [isinstance(value, torch.Tensor) and value.requires_grad]


def counts(made):
    infos = [each.cache_info() for each in (made if isinstance(made, tuple) else (made,))]
    found = {name: sum(getattr(info, name) for info in infos) for name in infos[0]._fields[:4]}
    return {**found, "captured": sum(len(info.graphs) for info in infos)}


def captured():
    """The captured graphs of this process."""
    return [each for each in gc.get_objects() if issubclass(type(each), CapturedGraph)]


def digest(values):
    plain = [v.flatten().view(torch.uint8).numpy().tobytes() if isinstance(v, torch.Tensor)
             else v.encode() for v in values]  # fmt: skip
    return hashlib.sha256(b"".join(plain)).hexdigest()


def measure(script):
    text = MORE + script.read_text()
    script.write_text(text)  # the lines of a function are read from the file
    names = {"__name__": "eager"}
    with torch.compiler.set_stance("force_eager"):
        eager, eager_needs = run(script, text.replace(IMPORT, EAGER), names)
    names.clear()
    gc.collect()  # a Library that is gone no longer defines its operators
    traced, before = counters["stats"]["unique_graphs"], {*globals()}
    got, needs = run(script, text, globals())
    assert needs == (eager_needs if not cached else [False] * len(needs)), (needs, eager_needs)
    for one, other in zip(got, eager, strict=True):
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype, (one.dtype, other.dtype)
            torch.testing.assert_close(one, other)
        else:
            assert one == other, (one, other)
    found = counts(eval(cached)) if cached else {"captured": len(captured())}
    found["traced"] = counters["stats"]["unique_graphs"] - traced
    found["dtypes"] = sorted({str(v.dtype) for v in got if isinstance(v, torch.Tensor)})
    for name in {*globals()} - before:
        del globals()[name]
    torch.compiler.reset()
    gc.collect()
    return {**found, "digest": digest(got)}


print(json.dumps({each.stem: measure(each) for each in sorted(Path(folder).glob("*.py"))}))
