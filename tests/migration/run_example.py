"""Run an edited example eagerly and cached, in two precisions, and print JSON.

python run_example.py FOLDER DEVICE CACHED RESULT ...

Each script of the folder is run as the main program that it is: first with a `cache_compile` that
gives back what it is given, and then as it stands.
"""

import gc
import hashlib
import json
import sys
from pathlib import Path

import torch

folder, device, cached, *results = sys.argv[1:]
if device == "npu":
    import npu_sim

    npu_sim.install()

from torch._dynamo.utils import counters  # noqa: E402

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
    return flat([names[name] for name in results])


def digest(values):
    plain = [v.flatten().view(torch.uint8).numpy().tobytes() if isinstance(v, torch.Tensor)
             else v.encode() for v in values]  # fmt: skip
    return hashlib.sha256(b"".join(plain)).hexdigest()


def measure(script):
    text = MORE + script.read_text()
    script.write_text(text)  # the lines of a function are read from the file
    names = {"__name__": "eager"}
    eager = run(script, text.replace(IMPORT, EAGER), names)
    names.clear()
    gc.collect()  # a Library that is gone no longer defines its operators
    traced, before = counters["stats"]["unique_graphs"], {*globals()}
    got = run(script, text, globals())
    for one, other in zip(got, eager, strict=True):
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype, (one.dtype, other.dtype)
            torch.testing.assert_close(one, other)
        else:
            assert one == other, (one, other)
    made = eval(cached)
    infos = [each.cache_info() for each in (made if isinstance(made, tuple) else (made,))]
    found = {name: sum(getattr(info, name) for info in infos) for name in infos[0]._fields[:4]}
    found["traced"] = counters["stats"]["unique_graphs"] - traced
    found["captured"] = sum(len(info.graphs) for info in infos)
    found["dtypes"] = sorted({str(v.dtype) for v in got if isinstance(v, torch.Tensor)})
    for name in {*globals()} - before:
        del globals()[name]
    return {**found, "digest": digest(got)}


print(json.dumps({each.stem: measure(each) for each in sorted(Path(folder).glob("*.py"))}))
