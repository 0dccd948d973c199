"""Plans of functions that use streams and events: captured again with others in their place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from npugx_cache import version
from npugx_cache.backend.capture import planned

WORKER = Path(__file__).parent / "streams_worker.py"
DEVICE = os.environ.get("NPUGX_TEST_DEVICE", "cpu")
PASSED_ON = ("PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD")
GRAPHS = {"between_events": 4 if DEVICE == "npu" else 3, "made_inside": 1, "module": 1}
"""Two streams that are told apart from the current one in the same way share a graph; those whose
cores are limited on an NPU don't."""

needs_numbers = pytest.mark.skipif(
    version.minor_version(torch.__version__) < (2, 12),
    reason="torch before 2.12 does not trace which stream is the current one",
)
needs_streams = pytest.mark.skipif(DEVICE == "cpu", reason="a CPU has no streams")


@pytest.fixture(scope="module")
def runs(once):
    def make(surroundings):
        folder = surroundings.folder / "plans"
        kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        command = "-W", "ignore", WORKER, DEVICE
        return {how: surroundings.run(*command, how, folder, **kept) for how in ("call", "warm")}

    return once("streams_in_plans", make)


@needs_streams
@needs_numbers
@pytest.mark.parametrize("name", GRAPHS)
def test_a_restarted_worker_captures_ahead_what_uses_streams(runs, name):
    first, warmed = (runs[how]["rows"][name] for how in ("call", "warm"))
    assert first["equal"]
    assert first["graphs"] == GRAPHS[name]
    assert warmed["warmed"] == [1, GRAPHS[name], []]
    assert warmed["ahead"] == warmed["graphs"] == GRAPHS[name], "a call captured once more"
    assert warmed["equal"]
    assert warmed["misses"] == 0
    assert warmed["replays"] == first["replays"]


@needs_streams
def test_it_needs_no_compiler(runs):
    assert not runs["warm"]["compiler"]


LABELS = ("stream", 0, 0, ()), ("stream", 1, 1, (2, 4)), ("event", 2, 2, ()), ("event", 3, 2, ())


def test_labels_are_recorded_beside_the_inputs():
    specs = (("number", 3), *LABELS)
    plan = planned.of_specs(specs, inference=False, obstacle="")
    assert plan.inputs == (("number", 3),)
    assert plan.labels == LABELS
    assert [planned.checked(planned.plain_spec(spec)) for spec in specs] == [*specs]
    assert plan.shape == "3"
    assert plan.identity != plan._replace(labels=LABELS[:-1]).identity


@pytest.mark.parametrize(
    "spec",
    [["stream", 0, 0], ["stream", 0, "0", []], ["event", 1, 1, [-1]], ["other", 1, 1, []]],
)
def test_garbage_is_no_label(spec):
    with pytest.raises(ValueError, match="not "):
        planned.checked(spec)
