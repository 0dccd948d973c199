"""Qwen3 with each option: prefill, StaticCache decode, growing; eager, cold and restarted."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cann_folder import install
from flips import ELSEWHERE, MERGED, NPU, PASSES, REPLAY, STATIC, UNCAPTURED

from npugx_cache.backend.options import SPECS

SCRIPT = Path(__file__).parent / "qwen3.py"
DEVICE = os.environ.get("NPUGX_TEST_DEVICE", "cpu")
PASSED_ON = ("PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD")
EVERYWHERE = {**PASSES, **REPLAY, **UNCAPTURED}
ALL = "NPUGX_TEST_ALL_OPTIONS" in os.environ
"""Also what is far from the graphs of this model, or tested on the other device: takes minutes."""
UNCHECKED = "unsafe_skip_npugraph_capture_validation"
ON_CPU = ["default", "remove_noop_ops", "inplace_pass", "post_grad_custom_pre_pass", "force_eager"]
SOME_STATIC = ["static_kernel_compile", "_vllm_aclnn_static_kernel_sym_range"]
ON_NPU = ["default", *REPLAY, *NPU, "force_eager", "super_kernel_optimize", *SOME_STATIC]
EVERY = [*EVERYWHERE, *NPU, *STATIC, *MERGED] if DEVICE == "npu" else [*EVERYWHERE]
SOME = {"cpu": ON_CPU, "cuda": [*ON_CPU, *REPLAY], "npu": ON_NPU}
HERE = EVERY if ALL else [*dict.fromkeys(SOME[DEVICE])]
SECONDS = 3000 if ALL else 500
pytestmark = pytest.mark.timeout(3 * SECONDS)  # the first test of a group runs it, twice
GROUPS = [HERE[start : start + 4] for start in range(0, len(HERE), 4)]


def test_every_option_that_there_is_gets_another_value():
    flipped = {"default", *EVERYWHERE, *NPU, *STATIC, *MERGED, *ELSEWHERE}
    assert flipped == {"default", *SPECS}


@pytest.fixture
def run_both(once):
    """Run an option and its neighbours, cold and restarted."""

    def make(surroundings, group):
        found = []
        kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        dumps = surroundings.folder / "dumps"  # part of the key
        dumps.mkdir(exist_ok=True)
        command = "-W", "ignore", SCRIPT, DEVICE, dumps, *group
        with_cann = {**kept, **(install(surroundings.folder / "cann") if DEVICE == "npu" else {})}
        # The restarted process finds no op_compiler, unless an option asks for it each time.
        compiles = "disable_static_kernel_compile_cache" in group
        restarted = with_cann if compiles else {**with_cann, "PATH": os.environ["PATH"]}
        for environment in (with_cann, restarted):
            found.append(surroundings.start(*command, **environment).result(timeout=SECONDS))
        return found

    def run(name):
        (group,) = (group for group in GROUPS if name in group)
        return [each[name] for each in once(f"qwen3_{group[0]}", lambda s: make(s, group))]

    return run


@pytest.mark.thorough
@pytest.mark.parametrize("loop", ["growing", "decoding"])
@pytest.mark.parametrize("name", HERE)
def test_qwen3_cold_and_restarted(run_both, name, loop):
    if DEVICE == "cuda" and (name, loop) == (UNCHECKED, "decoding"):
        pytest.skip("the option promises that caches stay where they are; the second loop's do not")
    cold, warm = (run[loop] for run in run_both(name))
    assert cold["close"]
    assert warm["close"]
    assert warm["digest"] == cold["digest"]
    assert (warm["misses"], warm["bypasses"], cold["bypasses"]) == (0, 0, 0)
    assert warm["graphs"] == cold["graphs"]
    captures = DEVICE != "cpu" or name in REPLAY
    captured = captures and name not in UNCAPTURED and name not in MERGED
    captured = captured and not name.startswith("_vllm")  # with force_eager
    # A GPU captures what comes a second time. With this option that is an address: each call of
    # these loops has tensors of its own.
    captured = captured and not (DEVICE == "cuda" and name == "clone_input")
    assert (warm["replays"] > 0) == captured


@pytest.mark.skipif(DEVICE != "npu", reason="kernels are compiled for an NPU alone")
@pytest.mark.parametrize("name", SOME_STATIC)
def test_static_kernels_of_a_model_are_found_again(run_both, name):
    cold, warm = run_both(name)
    for loop in ("growing", "decoding"):
        assert warm[loop]["kernels"] == cold[loop]["kernels"]
        assert cold[loop]["kernels"] > 20


@pytest.mark.skipif(DEVICE != "npu", reason="graphs are counted where they are captured")
def test_prefill_and_decode_are_both_captured(run_both):
    for run in run_both("default"):
        assert run["decoding"]["graphs"] == 2
        assert run["decoding"]["replays"] == 4
