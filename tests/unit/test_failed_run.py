"""Which errors let the function itself run a call again."""

import pytest
import torch

from npugx_cache.backend.runtime import PROGRAM_FILE
from npugx_cache.entry import failed_run


class Late(Exception):
    """As another thread raises it in this thread, wherever this thread is."""


def raised_by_a_program(error):
    names = {"error": error}
    exec(compile("def program():\n    raise error", PROGRAM_FILE, "exec"), names)
    exec("def caller():\n    program()", names)
    try:
        names["caller"]()
    except Exception as caught:
        return caught, names["caller"]


@pytest.mark.parametrize(
    "error", [RuntimeError("stride"), IndexError("index"), torch.linalg.LinAlgError("singular")]
)
def test_an_error_of_an_operator_does(error):
    assert failed_run.program_raised(*raised_by_a_program(error))


@pytest.mark.parametrize(
    "error",
    [Late(), TimeoutError(), MemoryError(), torch.OutOfMemoryError("full")],
)
def test_an_error_from_elsewhere_does_not(error):
    assert not failed_run.program_raised(*raised_by_a_program(error))


def test_an_error_of_another_graph_does_not():
    error, _ = raised_by_a_program(RuntimeError("stride"))
    assert not failed_run.program_raised(error, lambda: None)
