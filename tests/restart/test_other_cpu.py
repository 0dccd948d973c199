"""CPUs of one folder that run different operators: oneDNN can be told to take this one for less."""

from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parent / "other_cpu.py"
LESS = {"ONEDNN_MAX_CPU_ISA": "AVX2"}  # without 16 bits, where torch itself sees the same CPU

needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bfloat16 to hide"
)
needs_float16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_fp16_supported(), reason="this CPU has no float16 to hide"
)


COMPILED, HIT = [True, 0, 1, 0], [True, 1, 0, 0]


def run(surroundings, *arguments, **environment):
    return surroundings.run(SCRIPT, *arguments, **environment)


@needs_bfloat16
def test_an_lstm_of_one_cpu_is_no_hit_on_another(surroundings):
    for environment in ({}, LESS):
        assert run(surroundings, "bfloat16", **environment)[0] == COMPILED
        assert run(surroundings, "bfloat16", **environment)[0] == HIT
    assert run(surroundings, "bfloat16")[0] == HIT


@needs_float16
def test_an_lstm_taken_apart_is_not_restored_where_eager_runs_it_as_one(surroundings):
    for environment in (LESS, {}):
        assert run(surroundings, "float16", **environment)[0] == COMPILED
        assert run(surroundings, "float16", **environment)[0] == HIT


def is_refused(run):
    counts, log = run
    wanted = "this CPU runs this LSTM otherwise than it is traced with sizes that vary"
    return counts == [True, 0, 0, 1] and any(wanted in line for line in log)


@needs_bfloat16
def test_with_sizes_that_vary_one_that_onednn_cannot_run_is_refused(surroundings):
    assert is_refused(run(surroundings, "bfloat16", "dynamic", **LESS))
    assert run(surroundings, "bfloat16", "dynamic")[0] == COMPILED


@needs_float16
def test_with_sizes_that_vary_one_that_onednn_runs_as_one_is_refused(surroundings):
    assert run(surroundings, "float16", "dynamic", **LESS)[0] == COMPILED
    assert is_refused(run(surroundings, "float16", "dynamic"))
