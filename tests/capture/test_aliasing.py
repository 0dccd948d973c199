"""Every way in which memory can be shared, against eager: captured, replayed, and moved."""

import pytest
import torch
from capture_programs import PROGRAMS, agree, twins

SETTINGS = {
    "default": {},
    "lent outputs": {"clone_output": False},
    "inputs in place": {"clone_input": False},
    "both": {"clone_input": False, "clone_output": False},
    "recaptured": {"force_recapture": True},
    "frozen": {"frozen_parameter": True},
    "one graph": {"capture_limit": 1},
}


def run_both(run, function, inputs):
    eager_inputs = twins(*inputs)
    want = function(*eager_inputs)
    agree(run(*inputs), want, inputs, eager_inputs)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_what_eager_does(name, settings, compiled, device):
    function, inputs_of = PROGRAMS[name]
    run = compiled(function, *inputs_of(5, device), **SETTINGS[settings])
    for size in (5, 5, 3, 5, 3, 3):
        run_both(run, function, inputs_of(size, device))
    inputs = inputs_of(5, device)
    for _ in range(3):  # the same tensors again, with other contents
        run_both(run, function, inputs)
        for tensor in (each for each in inputs if isinstance(each, torch.Tensor)):
            if tensor.is_floating_point() and 0 not in tensor.stride():
                tensor.copy_(tensor + 1)
    assert 0 < len(run.captures.graphs) <= run.captures.options.capture_limit
