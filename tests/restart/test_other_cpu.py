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


def _is_refused(run):
    counts, log = run
    wanted = "this CPU runs this LSTM otherwise than it is traced"
    return counts == [True, 0, 0, 1] and any(wanted in line for line in log)


@needs_bfloat16
def test_an_lstm_traced_where_onednn_can_run_it_is_not_restored_where_it_cannot(surroundings):
    assert surroundings.run(SCRIPT, "bfloat16")[0] == [True, 0, 1, 0]
    assert surroundings.run(SCRIPT, "bfloat16")[0] == [True, 1, 0, 0]
    assert _is_refused(surroundings.run(SCRIPT, "bfloat16", **LESS))


@needs_bfloat16
def test_an_lstm_that_onednn_cannot_run_is_refused_and_traced_where_it_can(surroundings):
    assert _is_refused(surroundings.run(SCRIPT, "bfloat16", **LESS))
    assert surroundings.run(SCRIPT, "bfloat16")[0] == [True, 0, 1, 0]


@needs_float16
def test_an_lstm_taken_apart_is_not_restored_where_eager_runs_it_as_one(surroundings):
    assert surroundings.run(SCRIPT, "float16", **LESS)[0] == [True, 0, 1, 0]
    assert surroundings.run(SCRIPT, "float16", **LESS)[0] == [True, 1, 0, 0]
    assert _is_refused(surroundings.run(SCRIPT, "float16"))
