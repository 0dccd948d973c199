"""`npugx-cache triage` names the layer in which a program's first difference from eager lies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent


class Found(NamedTuple):
    """What a triage printed, and the folder that it wrote."""

    code: int
    report: dict[str, Any]
    folder: Path

    @property
    def kinds(self) -> dict[str, str]:
        return {stage["way"]: stage["kind"] for stage in self.report["stages"]}

    def stage(self, way: str) -> dict[str, Any]:
        return next(stage for stage in self.report["stages"] if stage["way"] == way)


@pytest.fixture
def triage(surroundings: Any) -> Callable[..., Found]:
    def triaging(target: str, *args: str) -> Found:
        folder, command = surroundings.folder / "issue", ("triage", "--format", "json")
        done = subprocess.run(
            [sys.executable, "-m", "npugx_cache", *command, "--out", folder, target, *args],
            cwd=HERE,
            env=surroundings.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=550,
            check=False,
        )
        assert done.stdout, done.stderr
        assert not surroundings.store.exists(), "the cache in use is not touched"
        return Found(done.returncode, json.loads(done.stdout), folder)

    return triaging


def of_pair(triage: Callable[..., Found], name: str, *more: str) -> Found:
    return triage(f"faulty:{name}", "--inputs", "faulty:pair", "--calls", "2", *more)


def shows_the_fault(found: Found, surroundings: Any) -> str:
    done = subprocess.run(
        [sys.executable, found.folder / "program.py"],
        cwd=found.folder,
        env=surroundings.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_a_function_that_raises_in_eager_is_at_fault_itself(triage):
    found = of_pair(triage, "fails", "--save-inputs")
    assert found.code == 1
    assert found.kinds == {"eager": "raised"}, "no other stage has to run"
    assert found.report["verdict"]["layer"] == "the function itself"
    assert "ValueError: the function fails" in found.report["verdict"]["said"]
    report = (found.folder / "report.md").read_text()
    assert found.report["versions"]["torch"] in report
    assert "float32[4, 8] on cpu" in report
    assert "ValueError: the function fails" in (found.folder / "logs/1-eager.log").read_text()
    args, kwargs = torch.load(found.folder / "inputs.pt", weights_only=True)
    assert [each.shape for each in args] == [(4, 8), (4, 8)]
    assert kwargs == {}


def test_a_stage_that_does_not_end_is_stopped(triage):
    found = triage("faulty:hangs", "--inputs", "faulty:pair", "--timeout", "1s")
    assert found.kinds == {"eager": "timed out"}
    assert found.report["verdict"]["layer"] == "the function itself"


@pytest.mark.thorough
def test_all_stages_agree_on_a_module_that_writes_to_buffers_and_arguments(triage):
    found = triage("faulty:counting", "--inputs", "faulty:cache_and_value")
    assert found.code == 0, found.report["verdict"]
    assert set(found.kinds.values()) == {"equal"}
    assert len(found.kinds) == 8
    assert found.stage("cold")["replays"] > 0, "captured graphs were replayed"
    assert found.stage("restored")["replays"] > 0
    assert not found.report["verdict"]["layer"]
    [entry] = (found.folder / "entries").iterdir()
    assert "faulty.Counting.forward" in entry.read_text()


@pytest.mark.thorough
def test_a_pass_that_changes_an_argument_is_named_and_shown(triage, surroundings):
    found = of_pair(triage, "forgotten")
    assert found.code == 1
    assert found.report["verdict"]["layer"] == "your pass faulty.forgets"
    assert found.kinds["traced"] == "equal"
    assert found.kinds["passes"] == "different"
    assert found.stage("passes")["detail"].startswith("x after the call")
    graphs = found.folder / "graphs"
    assert "aten.copy_" in (graphs / "before_post_grad_custom_pre_pass.txt").read_text()
    assert "aten.copy_" not in (graphs / "after_post_grad_custom_pre_pass.txt").read_text()
    program = (found.folder / "program.py").read_text()
    assert program.count("torch.ops.aten.") == 1, "what is not needed to show it is gone"
    assert "AssertionError" in shows_the_fault(found, surroundings)


@pytest.mark.thorough
def test_a_pass_that_raises_is_named_and_shown(triage, surroundings):
    found = of_pair(triage, "raised")
    assert found.report["verdict"]["layer"] == "your pass faulty.raises"
    assert found.kinds["passes"] == "raised"
    assert "a fault of the pass" in shows_the_fault(found, surroundings)


@pytest.mark.thorough
def test_a_pass_that_ends_the_process_is_named(triage):
    found = of_pair(triage, "aborted_in_pass")
    assert found.kinds["traced"] == "equal"
    assert found.stage("passes")["detail"] == "SIGABRT"
    assert found.report["verdict"]["layer"] == "your pass faulty.aborts"


@pytest.mark.thorough
def test_a_crash_under_torch_compile_is_no_fault_of_the_cache(triage):
    found = of_pair(triage, "aborted")
    assert found.kinds["eager again"] == "equal"
    assert found.kinds["dynamo"] == "crashed"
    assert found.report["verdict"]["layer"] == "torch.compile (Dynamo)"
    log = (found.folder / found.stage("dynamo")["log"]).read_text()
    assert "in os_abort" in log or "faulty.py" in log, "the stack is there"


@pytest.mark.thorough
def test_what_dynamo_refuses_is_named_with_its_line(triage):
    found = of_pair(triage, "branches")
    assert found.kinds["dynamo"] == "raised"
    assert found.kinds["cold"] == "uncached"
    line = 1 + (HERE / "faulty.py").read_text().splitlines().index("    if x.sum() > y.sum():")
    assert found.report["verdict"]["layer"] == "torch.compile (Dynamo)"
    assert f"faulty.py:{line} in branches" in found.report["verdict"]["said"]


@pytest.mark.thorough
def test_what_torch_compile_computes_otherwise_is_shown_without_the_cache(triage, surroundings):
    found = of_pair(triage, "lowered_otherwise")
    assert found.kinds["dynamo"] == "different"
    assert found.report["verdict"]["layer"] == "torch.compile (Dynamo)"
    assert "AssertionError" in shows_the_fault(found, surroundings)


@pytest.mark.thorough
def test_random_numbers_are_no_difference_and_the_refusal_is_told(triage):
    found = of_pair(triage, "draws")
    assert found.kinds["eager again"] == "equal", "each stage begins with the same seed"
    assert found.kinds["traced"] == "uncached"
    assert found.report["verdict"]["layer"] == "npugx_cache: refused"
    assert "random numbers" in found.report["verdict"]["said"]


@pytest.mark.thorough
def test_a_function_that_differs_from_itself_is_at_fault_itself(triage):
    found = of_pair(triage, "unseeded")
    assert found.kinds["eager again"] == "different"
    assert "dynamo" in found.kinds, "the others are compared with what eager differs from itself"
    assert found.report["verdict"]["layer"] == "the function itself"


@pytest.mark.thorough
def test_inputs_that_differ_at_each_start_are_told_from_a_fault(triage):
    found = triage("faulty:plain", "--inputs", "faulty:other_inputs")
    assert list(found.kinds) == ["eager", "eager again"]
    assert found.report["verdict"]["layer"] == "the inputs"
    assert found.report["verdict"]["said"].startswith(
        "The inputs differ from one start to the next: x"
    )


@pytest.mark.thorough
def test_a_restart_that_compiles_again_is_told_with_its_reason(triage):
    found = of_pair(triage, "of_this_start")
    assert found.kinds["cold"] == "equal"
    assert found.kinds["restored"] == "missed"
    assert "START" in found.report["verdict"]["said"]


@pytest.mark.thorough
def test_the_calls_of_a_script_are_compared_one_by_one(triage, surroundings):
    found = triage("faulty.py", "--", "hello")
    assert found.report["verdict"]["layer"] == "your pass __main__.adds"
    assert found.stage("passes")["detail"].startswith("result[0]")
    assert found.stage("passes")["call"] == 0
    assert "hello: " in (found.folder / "logs/1-eager.log").read_text()
    assert "AssertionError" in shows_the_fault(found, surroundings)
