"""Stream blocks, events and `record_stream` in a cached function: eager's order, on each stream."""

import os
from pathlib import Path

import pytest

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)

import stream_programs

NAMES = tuple(stream_programs.PROGRAMS)
SCRIPT = Path(__file__).parent / "run_streams.py"
PASSED_ON = ("PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD")


@pytest.fixture
def runs(once):
    """Every program uncaptured, cold and restarted."""

    def make(surroundings):
        kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        command = "-W", "ignore", SCRIPT, "EAGER"
        return [surroundings.start(*command, **kept).result() for _ in range(2)]

    return once("streams", make)


@pytest.mark.parametrize("phase", ["cold", "restarted"])
@pytest.mark.parametrize("name", NAMES)
def test_everything_is_issued_to_the_stream_and_in_the_order_of_eager(runs, name, phase):
    row = runs[phase == "restarted"]["rows"][name]
    assert row["equal"]
    assert row["issued"] == row["eager"]
    if phase == "cold":
        assert (row["misses"], row["bypasses"]) == (1, 0)
    else:
        assert (row["hits"], row["misses"], row["bypasses"]) == (1, 0, 0)


def test_the_programs_do_issue_to_several_streams(runs):
    issued = runs[1]["rows"]["nested_blocks"]["issued"][0]
    kernels = [stream for what, _, stream in issued if what not in ("record", "wait")]
    assert kernels == ["side", "stream 2", "side", ""]


def test_a_restart_loads_no_compiler(runs):
    assert runs[1]["loaded"] == []
