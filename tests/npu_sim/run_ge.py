"""One program of GE mode in a process of its own: prints JSON about each of its calls.

python run_ge.py PROGRAM [OPTION=VALUE ...]
"""

import hashlib
import importlib
import json
import logging
import os
import sys
from pathlib import Path

import graph_engine
import npu_sim
import torch

from npugx_cache import cache_compile

npu_sim.install()
graph_engine.install()
logging.basicConfig(level=logging.WARNING)
LOADED = ("torchair", "torch_npu.dynamo.torchair", "google.protobuf", "torch._dynamo", "sympy")
EXTENSIONS = {"torchair.core._torchair", "torchair.core._npu_graph_executor"}
LAZY = "_LazyTorchair"


class Add(torch.nn.Module):
    """The example of the document on GeConcreteGraph."""

    def forward(self, x, y):
        return torch.add(x, y)


def add():
    torch.manual_seed(0)
    return Add().npu(), [(torch.randn(2, 2).npu(), torch.randn(2, 2).npu())], False


def mlp(dynamic=False):
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    calls = [(torch.randn(size, 8).npu(),) for size in ((2, 5, 3) if dynamic else (2,))]
    return torch.nn.Sequential(*layers).eval().npu(), calls, dynamic


def qwen3():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=128,
        attn_implementation="eager",
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval().npu()
    return model, [{"input_ids": torch.arange(16)[None].npu(), "use_cache": False}], False


def qwen3_dynamic():
    # Otherwise the epsilon of a norm is an input, which a graph for GE can't have.
    torch._dynamo.config.specialize_float = True
    model, _, _ = qwen3()
    # The converters compare sizes with 2, 4 and 16, heads and their size: what they see is a guard.
    calls = [{"input_ids": torch.arange(n)[None].npu(), "use_cache": False} for n in (12, 9, 16)]
    return model, calls, True


def edited():
    sign = os.environ["NPUGX_TEST_SIGN"]
    source = f"def edited(x):\n    return x {sign} 2\n"
    (Path.cwd() / "edited_module.py").write_text(source)
    sys.path.insert(0, str(Path.cwd()))
    sys.dont_write_bytecode = True
    x = torch.full((2, 2), 5.0).npu()
    return importlib.import_module("edited_module").edited, [(x,)], False


def add_then_torchair():
    return add()


PROGRAMS = {
    "add": add,
    "add_then_torchair": add_then_torchair,
    "edited": edited,
    "mlp": mlp,
    "mlp_dynamic": lambda: mlp(dynamic=True),
    "qwen3": qwen3,
    "qwen3_dynamic": qwen3_dynamic,
}


def loaded():
    """What a restart must not load; the proxy that torch_npu leaves under the name is no module."""
    names = {name for name in sys.modules if name.startswith(LOADED)} - EXTENSIONS
    if type(sys.modules.get("torchair")).__name__ == LAZY:
        names -= {"torchair"}
    return sorted(names)


class Lines(logging.Handler):
    """The warnings of the cache."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


def vendors_edited():
    """The vendor's own cache of compiled models, for a function that is edited in between."""
    torchair = importlib.import_module("torchair")
    sign = os.environ["NPUGX_TEST_SIGN"]
    names = {"torch": torch}
    source = f"class Model(torch.nn.Module):\n    def run(self, x):\n        return x {sign} 2\n"
    exec(source, names)
    model = names["Model"]()
    cached = torchair.inference.cache_compile(
        model.run,
        config=torchair.CompilerConfig(),
        dynamic=False,
        cache_dir="vendors",
        ge_cache=True,
    )
    with torch.no_grad():
        return {"result": cached(torch.full((2, 2), 5.0).npu()).cpu().flatten()[0].item()}


def run(program, options):
    if "NPUGX_TEST_HF32" in os.environ:
        torch.npu.matmul.allow_hf32 = True
    model, calls, dynamic = PROGRAMS[program]()
    eager = [called(model, each) for each in calls]
    before, lines = loaded(), Lines()
    logging.getLogger("npugx_cache").addHandler(lines)
    cached = cache_compile(model, backend="max-autotune", dynamic=dynamic, options=options)
    got = [called(cached, each) for each in calls for _ in range(2)]
    logging.getLogger("npugx_cache").removeHandler(lines)
    info = getattr(cached, "forward", cached).cache_info()
    after = loaded()
    config = ""
    if program == "add_then_torchair":
        config = importlib.import_module("torchair").CompilerConfig().mode.value
    return {
        "close": all(close(got[i], eager[i // 2]) for i in range(len(got))),
        "digest": digest(got),
        "hits": info.hits,
        "misses": info.misses,
        "bypasses": info.bypasses,
        "stored": info.stored,
        "said": "\n".join(lines.said),
        "result": got[0].flatten()[0].item(),
        "config": config,
        "loaded": sorted({*after} - {*before}),
        "engine": [what for what, _ in graph_engine.events],
        "options": graph_engine.options(0) if graph_engine.events else {},
    }


@torch.no_grad()
def called(model, inputs):
    made = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    return getattr(made, "logits", made)


def close(got, want):
    torch.testing.assert_close(got.cpu(), want.cpu())
    return torch.equal(got.argmax(-1).cpu(), want.argmax(-1).cpu())


def digest(results):
    return hashlib.sha256(b"".join(each.cpu().numpy().tobytes() for each in results)).hexdigest()


if __name__ == "__main__":
    if sys.argv[1] == "vendors_edited":
        print(json.dumps(vendors_edited()))
        sys.exit()
    if "NPUGX_TEST_PROTOBUF" in os.environ:
        sys.modules["google"] = None
    chosen = dict(each.split("=", 1) for each in sys.argv[2:])
    print(json.dumps(run(sys.argv[1], {name: json.loads(v) for name, v in chosen.items()})))
