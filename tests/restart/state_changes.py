"""Functions that change a state of torch's or do something else than compute, plain and cached.

python state_changes.py [NAME ...] prints what the world is like after each of them, as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import warnings

import torch
from torch import backends

FUNCTIONS = {}


def changes(state, reason):
    """`state` is the name of what differs after the function; `reason` a part of the refusal."""
    del state, reason  # read by test_state_changes.py
    return leaves


def leaves(function):
    """A function that puts back what it changes, and that is cached."""
    FUNCTIONS[function.__name__] = function
    return function


def _autocast():
    dtype = str(torch.get_autocast_dtype("cpu"))
    return torch.is_autocast_enabled("cpu"), dtype, torch.is_autocast_cache_enabled()


def _set_autocast(value):
    torch.set_autocast_enabled("cpu", value[0])
    torch.set_autocast_dtype("cpu", getattr(torch, value[1].removeprefix("torch.")))
    torch.set_autocast_cache_enabled(value[2])


LOG = []
OPERATORS = torch.library.Library("npugx_effects", "DEF")
OPERATORS.define("note(Tensor x) -> ()")


@torch.library.impl(OPERATORS, "note", "CPU")
def note(x):
    LOG.append(float(x.sum()))


@torch.library.register_fake("npugx_effects::note")
def note_fake(x):
    return None


DETERMINISTIC = (
    lambda: [
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    ],
    lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
)
STATES = {
    "default dtype": (
        lambda: str(torch.get_default_dtype()),
        lambda value: torch.set_default_dtype(getattr(torch, value.removeprefix("torch."))),
    ),
    "matmul precision": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "deterministic": DETERMINISTIC,
    "deterministic fill": (
        lambda: torch.utils.deterministic.fill_uninitialized_memory,
        lambda value: setattr(torch.utils.deterministic, "fill_uninitialized_memory", value),
    ),
    "flash": (backends.cuda.flash_sdp_enabled, backends.cuda.enable_flash_sdp),
    "efficient": (backends.cuda.mem_efficient_sdp_enabled, backends.cuda.enable_mem_efficient_sdp),
    "math": (backends.cuda.math_sdp_enabled, backends.cuda.enable_math_sdp),
    "cudnn attention": (backends.cuda.cudnn_sdp_enabled, backends.cuda.enable_cudnn_sdp),
    "cudnn benchmark": (
        lambda: backends.cudnn.benchmark,
        lambda value: setattr(backends.cudnn, "benchmark", value),
    ),
    "mkldnn": (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    "grad": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "inference": (torch.is_inference_mode_enabled, None),
    "autocast": (_autocast, _set_autocast),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "default device": (
        lambda: str(torch.get_default_device()),
        lambda value: torch.set_default_device(None),
    ),
    "anomaly": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "warn always": (torch.is_warn_always_enabled, torch.set_warn_always),
    "seed": (torch.initial_seed, torch.manual_seed),
    "random": (lambda: hash(random.getstate()), lambda value: random.seed(0)),
    "view replay": (torch._C._is_view_replay_enabled, torch._C._set_view_replay_enabled),
    "sparse checks": (
        torch._C._check_sparse_tensor_invariants,
        torch._C._set_check_sparse_tensor_invariants,
    ),
    "overwrites parameters": (
        torch.__future__.get_overwrite_module_params_on_conversion,
        torch.__future__.set_overwrite_module_params_on_conversion,
    ),
    "operator called": (lambda: list(LOG), lambda value: LOG.clear()),
}

NOT_HELD = "has an effect or an answer that a graph does not hold"
SKIPPED = "torch can't trace"


@changes("deterministic", NOT_HELD)
def deterministic(x):
    y = x * 3
    torch.use_deterministic_algorithms(True)
    return y + 1


@changes("deterministic", NOT_HELD)
def deterministic_with_warnings(x):
    torch.use_deterministic_algorithms(True, warn_only=True)
    return x + 1


@changes("deterministic", NOT_HELD)
def deterministic_by_mode(x):
    torch.set_deterministic_debug_mode("warn")
    return x + 1


@changes("deterministic fill", "is set, which a graph does not do")
def fill(x):
    torch.utils.deterministic.fill_uninitialized_memory = False
    return x + 1


@changes("matmul precision", NOT_HELD)
def precision(x):
    torch.set_float32_matmul_precision("high")
    return x @ x


@changes("default dtype", NOT_HELD)
def default_dtype(x):
    before = torch.zeros(2)  # a trace that left float64 behind would change this one
    torch.set_default_dtype(torch.float64)
    return x @ x, before, torch.zeros(2)


@changes("flash", NOT_HELD)
def flash(x):
    backends.cuda.enable_flash_sdp(False)
    return x @ x


@changes("efficient", NOT_HELD)
def efficient(x):
    backends.cuda.enable_mem_efficient_sdp(False)
    return x @ x


@changes("math", NOT_HELD)
def math_attention(x):
    backends.cuda.enable_math_sdp(False)
    return x @ x


@changes("cudnn attention", NOT_HELD)
def cudnn_attention(x):
    backends.cuda.enable_cudnn_sdp(False)
    return x @ x


@changes("cudnn benchmark", "is set, which a graph does not do")
def benchmark(x):
    backends.cudnn.benchmark = not backends.cudnn.benchmark
    return x + 1


@changes("mkldnn", NOT_HELD)
def mkldnn(x):
    torch._C._set_mkldnn_enabled(False)
    return x @ x


@changes("grad", "is left changed")
def grad(x):
    torch.set_grad_enabled(True)
    return x + 1


@changes("autocast", NOT_HELD)
def autocast(x):
    torch.set_autocast_enabled("cpu", True)
    return x @ x


@changes("autocast", NOT_HELD)
def autocast_dtype(x):
    torch.set_autocast_dtype("cpu", torch.float16)
    return x @ x


@changes("autocast", NOT_HELD)
def autocast_cache(x):
    torch.set_autocast_cache_enabled(False)
    return x @ x


@changes("threads", SKIPPED)
def threads(x):
    torch.set_num_threads(2)
    return x @ x


@changes("default device", "is set, which a graph does not do")
def default_device(x):
    torch.set_default_device("cpu:0")
    return x + 1


@changes("anomaly", SKIPPED)
def anomaly(x):
    torch.autograd.set_detect_anomaly(True)
    return x + 1


@changes("warn always", NOT_HELD)
def warn_always(x):
    torch.set_warn_always(True)
    return x + 1


@changes("seed", SKIPPED)
def seed(x):
    torch.manual_seed(7)
    return x + 1


@changes("random", SKIPPED)
def random_seed(x):
    random.seed(3)
    return x + 1


@changes("view replay", NOT_HELD)
def view_replay(x):
    torch._C._set_view_replay_enabled(True)
    return x + 1


@changes("sparse checks", NOT_HELD)
def sparse_checks(x):
    torch.sparse.check_sparse_tensor_invariants.enable()
    return x + 1


@changes("overwrites parameters", NOT_HELD)
def overwrites_parameters(x):
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    return x + 1


@changes(None, NOT_HELD)
def empties_cache(x):
    torch.cuda.empty_cache()
    return x + 1


@changes(None, NOT_HELD)
def counts_a_write(x):
    torch._C._increment_version([x])
    return x + 1


@leaves
def attention_by_math(x):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        y = torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])
    return y + 1


@leaves
def grad_block(x):
    with torch.enable_grad():
        y = x * 2
    return y + 1


@leaves
def inference_block(x):
    with torch.inference_mode():
        y = x * 2
    return y + 1


@leaves
def autocast_block(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x
    return y, x @ x


@leaves
def named_range(x):
    with torch.profiler.record_function("a range"):
        return x + 1


@leaves
def transforms(x):
    return torch.vmap(lambda row: row * 2)(x), torch.func.grad(lambda a: (a * 2).sum())(x)


@leaves
def checks_and_counts_api_use(x):
    torch._check(x.shape[0] == 4)
    torch._assert(x.shape[1] == 4, "columns")
    torch._C._log_api_usage_once("npugx.test")
    return x + 1


@leaves
def clears_autocast_cache(x):
    torch.clear_autocast_cache()
    return x + 1


@leaves
def notes(x):
    torch.ops.npugx_effects.note(x)
    return x + 1


class Records(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append((record.levelname, record.getMessage()))


def read():
    return {name: get() for name, (get, _) in STATES.items()}


def put_back(before):
    now = read()
    for name, (_, put) in STATES.items():
        if put is not None and now[name] != before[name]:
            put(before[name])


def shown(value):
    values = value if isinstance(value, tuple) else (value,)
    return [(str(each.dtype), each.tolist()) for each in values]


def world_after(call):
    with torch.no_grad():
        before, x = read(), torch.ones(4, 4)
        version = x._version
        result = shown(call(x))
        after = read()
        put_back(before)
    changed = {name: after[name] for name in after if after[name] != before[name]}
    return {"result": result, "changed": changed, "writes": x._version - version}


def run(name):
    from npugx_cache import cache_compile

    function = FUNCTIONS[name]
    arguments = {"backend": os.environ.get("NPUGX_TEST_BACKEND", "npugraph_ex")}
    cached, records = cache_compile(function, **arguments), Records()
    logging.getLogger("npugx_cache").addHandler(records)
    try:
        worlds = {"eager": world_after(function)}
        worlds |= {each: world_after(cached) for each in ("first", "second")}
    finally:
        logging.getLogger("npugx_cache").removeHandler(records)
    info = cached.cache_info()
    counts = {key: getattr(info, key) for key in ("hits", "misses", "bypasses")}
    return {"worlds": worlds, "logged": records.lines, **counts}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("npugx_cache").propagate = False
    print(json.dumps({name: run(name) for name in sys.argv[1:] or FUNCTIONS}))
