"""Passes of an engine, for which the user answers: what they make of a graph is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run_stated.py")
TEXT = Path(__file__).with_name("fusing.py").read_text()
COLD = {"difference": 0.0, "info": [0, 1, 0, 1], "fused": True, "runs": 1}
HIT = {"difference": 0.0, "info": [1, 0, 0, 0], "fused": True, "runs": 0}
UNCACHED = {"difference": 0.0, "info": [0, 0, 1, 0], "fused": True, "runs": 1}


@pytest.fixture
def start(surroundings):
    (surroundings.folder / "fusing.py").write_text(TEXT)

    def start(*more, configuration="a", passes="store", **environment):
        variables = {"NPUGX_CACHE_ENGINE_PASSES": passes, **environment}
        return surroundings.run(SCRIPT, surroundings.folder, configuration, *more, **variables)

    return start


@pytest.mark.thorough
def test_a_fused_graph_is_stored_and_a_restart_runs_no_pass(start):
    assert start() == COLD
    assert start() == HIT
    assert start(VLLM_HOST_IP="10.0.0.7", VLLM_PORT="4000") == HIT
    assert start(passes=None) == UNCACHED


@pytest.mark.thorough
def test_what_the_user_answers_for_is_in_the_key(start, surroundings):
    assert start() == COLD
    assert start(configuration="b") == COLD
    assert start(VLLM_USE_FUSED="1") == COLD
    edited = TEXT.replace("MODULE_FACTOR = 1.0", "MODULE_FACTOR = 2.0")
    (surroundings.folder / "fusing.py").write_text(edited)
    assert start() == COLD
    edited = edited.replace("# more state", "self.scaled = True")
    (surroundings.folder / "fusing.py").write_text(edited)
    assert start() == COLD
    assert start() == HIT


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("more", "configuration", "reason"),
    [
        ((), "", "the engine has not told the hash of its configuration"),
        (("--no-file",), "a", "the code of fusing, which defines a pass, is in no file"),
    ],
)
def test_what_has_no_name_runs_at_each_start_and_says_why(
    start, surroundings, more, configuration, reason
):
    worker = surroundings.start(
        SCRIPT,
        surroundings.folder,
        configuration,
        *more,
        NPUGX_CACHE_ENGINE_PASSES="store",
    )
    assert worker.result() == UNCACHED
    assert reason in worker.stderr


@pytest.mark.thorough
def test_a_value_that_is_none_of_the_two_is_refused_at_once(surroundings):
    worker = surroundings.start(SCRIPT, surroundings.folder, "a", NPUGX_CACHE_ENGINE_PASSES="yes")
    _, err = worker.process.communicate()
    assert "NPUGX_CACHE_ENGINE_PASSES='yes': valid values are run, store" in err
