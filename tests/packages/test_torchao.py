"""torch.compile(backend="npugx") of a model that torchao quantized: cold and restarted."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough
SCRIPT = Path(__file__).with_name("compiled_torchao.py")


def test_a_graph_that_takes_quantized_weights_is_restored(surroundings):
    pytest.importorskip("torchao", reason="bash tests/packages/run has it")
    cold = surroundings.run(SCRIPT)
    assert cold == {"difference": 0.0, "quantized": 2, "info": [0, 1, 0, 1]}
    assert surroundings.run(SCRIPT) == {**cold, "info": [1, 0, 0, 0]}
