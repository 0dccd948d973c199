"""CPUs of one folder that run different operators: oneDNN can be told to take this one for less."""

from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent / "other_cpu.py"
LESS = {"ONEDNN_MAX_CPU_ISA": "AVX2"}  # without bfloat16, where torch itself sees the same CPU

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bfloat16 to hide"
)


def _is_refused(run):
    counts, log = run
    return counts == [True, 0, 0, 1] and any("this CPU can't run this LSTM" in line for line in log)


def test_an_lstm_traced_where_onednn_can_run_it_is_not_restored_where_it_cannot(surroundings):
    assert surroundings.run(SCRIPT)[0] == [True, 0, 1, 0]
    assert surroundings.run(SCRIPT)[0] == [True, 1, 0, 0]
    assert _is_refused(surroundings.run(SCRIPT, **LESS))


def test_an_lstm_that_onednn_cannot_run_is_refused_and_traced_where_it_can(surroundings):
    assert _is_refused(surroundings.run(SCRIPT, **LESS))
    assert surroundings.run(SCRIPT)[0] == [True, 0, 1, 0]
