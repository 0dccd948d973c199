"""Which errors let the function itself run a call again."""

import traceback

import pytest
import torch

from npugx_cache.backend.program import Call, Operator, Program
from npugx_cache.backend.runtime import PROGRAM_FILE, bind_program
from npugx_cache.conditions import Conditions
from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.data import CALL, Check, Kind, columns
from npugx_cache.conditions.kinds import live_state
from npugx_cache.entry import failed_run
from npugx_cache.entry.restore import Specialisation


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


def test_an_error_of_the_frame_around_the_program_does_not():
    """It may have replayed a side effect of the function already."""

    def caller():
        raise RuntimeError("stride")

    with pytest.raises(RuntimeError) as info:
        caller()
    assert failed_run.program_raised(*raised_by_a_program(RuntimeError("stride")))
    assert not failed_run.program_raised(info.value, caller)


def test_an_error_of_another_graph_does_not():
    error, _ = raised_by_a_program(RuntimeError("stride"))
    assert not failed_run.program_raised(error, lambda: None)


ADD, SCALAR, METADATA = (
    Operator("aten", "add", "Tensor"),
    Operator("aten", "_assert_scalar", ""),
    Operator("aten", "_assert_tensor_metadata", ""),
)
DTYPE = ["dtype", ["torch", "float64"]], ["device", ["device", "cpu"]]


def repeating(operator, args, kwargs=()):
    """A program of equal blocks: three sums, and a call that raises."""
    calls, value = [], 0
    for block in range(30):
        for place in range(3):
            calls.append(Call(f"a{block}_{place}", 0, [["value", value], ["value", value]], []))
            value = len(calls)
        taken = [["value", value] if arg == "x" else arg for arg in args]
        calls.append(Call(f"b{block}", 1, taken, [list(each) for each in kwargs]))
    return Program(
        inputs=("x",),
        constants=(),
        operators=(ADD, operator),
        calls=tuple(calls),
        outputs=["value", value],
        disable_autocast=False,
    )


@pytest.mark.parametrize(
    ("program", "by_data"),
    [
        (repeating(METADATA, ["x"], DTYPE), True),
        (repeating(SCALAR, [["bool", False], "no such size"]), True),
        (repeating(Operator("aten", "mm", ""), ["x", "x"]), False),
    ],
)
def test_only_a_check_tells_of_other_sizes(program, by_data):
    run = bind_program(program, {})

    def caller():
        return run(torch.ones(3))

    conditions = Checker(
        Conditions(
            parents=(),
            steps=(),
            args=(),
            checks=columns([Check(CALL, Kind.STATE, live_state())]),
            idents=(),
            tensors=(),
        )
    )
    graph = Specialisation(
        entry=None,
        conditions=conditions,
        run=caller,
        switches=(),
        code=caller.__code__,
        operators=program.operators,
    )
    try:
        caller()
    except RuntimeError as error:
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        failure = failed_run.failure_of([graph], error)
    assert frames[-1] == "block"
    assert failure.by_data is by_data
