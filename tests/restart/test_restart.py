"""Programs that must hit after a restart, with eager's results and without a compiler (P1, P3)."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from npugx_cache import version

HERE = Path(__file__).parent
RUN = HERE / "run.py"
# In each phase that there is; rows of the matrix look at the same quickly.
THOROUGH = (
    ("programs_control_flow", "programs_data_sizes"),
    ("programs_modules", "programs_library", "programs_objects", "programs_data"),
)
CUSTOM_OP = "programs_custom_op:custom_op"
QUICK_GROUPS = (("programs",), (CUSTOM_OP,))
LONG = ("programs_torch", "programs_python")  # thorough
GROUPS = (("programs",), *((each,) for each in LONG))
ALL_GROUPS = (*GROUPS, (CUSTOM_OP,))


def _names(groups):
    """The programs by name, without importing torch: each is a function marked `@program`."""
    for group in groups:
        for module in group:
            lines = (HERE / f"{module}.py").read_text().splitlines()
            for mark, line in itertools.pairwise(lines):
                if mark == "@program":
                    yield f"{module}:{line.removeprefix('def ').partition('(')[0]}"


NAMES = list(_names(GROUPS))
THOROUGH_NAMES = list(_names(THOROUGH))


def marked(name):
    return pytest.param(name, marks=[pytest.mark.thorough] if name.startswith(LONG) else [])


def run_all(surroundings, *groups, **environment):
    """Run groups of programs, each in a process of its own, side by side."""
    workers = [surroundings.start(RUN, HERE, *group, **environment) for group in groups]
    return {name: row for worker in workers for name, row in worker.result().items()}


OLD = {
    "programs_python:enum_arguments": ((2, 12), "can't compare members that have attributes"),
    "programs_torch:multi_head_attention_and_norms": ((2, 12), "traces other strides"),
    "programs_control_flow:branches_that_write_to_an_argument": ((2, 12), ""),
    "programs_control_flow:a_branch_that_is_there_to_write": ((2, 12), ""),
    "programs_modules:an_encoder_that_asks_whether_its_mask_is_causal": (
        (2, 11),
        "does not trace the bool() of a tensor",
    ),
    "programs_objects:attributes_set_past_descriptors": (
        (2, 13),
        "does not trace items that are set in a __dict__",
    ),
}
"""What is cached since which torch, and why an older one runs it eagerly. Where nothing is said, it
does not run the program at all: its torch.cond has no branches that write."""


def skip_on_old(name, *runs):
    """Where a program is not cached, it is right in all runs, which say that it runs uncached."""
    since, reason = OLD.get(name, ((0, 0), ""))
    if version.minor_version(torch.__version__) < since:
        for run in runs if reason else ():
            assert run["difference"] is None
            assert run["bypasses"] > 0
            assert any("runs uncached" in line for line in run["warnings"])
        reason = reason or "runs no torch.cond with branches that write"
        pytest.skip(f"torch before {since[0]}.{since[1]} {reason}")


@pytest.fixture(scope="module")
def runs(once, only_quick):
    groups = QUICK_GROUPS if only_quick else ALL_GROUPS

    def make(surroundings):
        done = {phase: run_all(surroundings, *groups) for phase in ("cold", "warm")}
        return {**done, "folder": str(surroundings.folder)}

    return once("restart", make)


@pytest.fixture(scope="module")
def thorough_runs(once):
    def make(surroundings):
        done = {phase: run_all(surroundings, *THOROUGH) for phase in ("cold", "warm")}
        # Eager torch.cond loads Dynamo, so that a second restart shows what a hit loads.
        alone = run_all(surroundings, *THOROUGH, NPUGX_TEST_ONLY_CACHED="1")
        again = run_all(surroundings, *THOROUGH, NPUGX_CACHE_VERIFY="recompile")
        return {**done, "alone": alone, "again": again}

    return once("restart thorough", make)


@pytest.fixture(scope="module")
def rechecked(once, runs):
    def make(surroundings):
        fleet = type(surroundings)(Path(runs["folder"]))
        return run_all(fleet, *ALL_GROUPS, NPUGX_CACHE_VERIFY="recompile")

    return once("rechecked", make)


@pytest.mark.parametrize("name", [*map(marked, NAMES), CUSTOM_OP])
def test_a_cold_run_is_right_and_restarted_it_hits_with_the_same_result(runs, name):
    skip_on_old(name, runs["cold"][name], runs["warm"][name])
    check_restarted(runs["cold"][name], runs["warm"][name])


def check_restarted(cold, warm):
    assert cold["difference"] is None
    assert cold["bypasses"] == 0, cold["warnings"]
    assert cold["misses"] > 0
    assert warm["difference"] is None
    assert (warm["misses"], warm["bypasses"]) == (0, 0), [warm["reasons"], warm["warnings"]]
    assert warm["hits"] > 0
    assert warm["digest"] == cold["digest"], "restored and cold differ in a bit"
    assert cold["warnings"] == warm["warnings"] == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*NAMES, CUSTOM_OP])
def test_every_entry_is_what_another_compile_makes(rechecked, name):
    run = rechecked[name]
    skip_on_old(name, run)
    assert run["difference"] is None
    assert (run["misses"], run["bypasses"]) == (0, 0), [run["reasons"], run["warnings"]]


@pytest.mark.parametrize("name", list(map(marked, NAMES)))
def test_a_restart_loads_no_compiler(runs, name):
    assert runs["warm"][name]["loaded"] == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", THOROUGH_NAMES)
def test_cold_restarted_alone_and_compiled_again_the_results_are_eagers(thorough_runs, name):
    cold, warm, alone, again = (
        thorough_runs[phase][name] for phase in ("cold", "warm", "alone", "again")
    )
    skip_on_old(name, cold, warm, again)
    check_restarted(cold, warm)
    assert alone["loaded"] == []
    assert (alone["misses"], alone["bypasses"]) == (0, 0)
    assert alone["digest"] == cold["digest"]
    assert again["difference"] is None
    assert (again["misses"], again["bypasses"]) == (0, 0), [again["reasons"], again["warnings"]]


CAPTURED = {"NPUGX_TEST_BACKEND": "npugraphs"}
NOT_CAPTURED = {
    "programs_torch:lazily_conjugated_and_negated_inputs": "lazily conjugated or negated",
    "programs_torch:a_number_read_from_data": "reads a number from a tensor",
    "programs_modules:an_encoder_that_asks_whether_its_mask_is_causal": "reads a number",
    "programs_data": "reads a number from a tensor",
    "programs_data_sizes": "returns depends on data",
    "programs_data_sizes:sizes_made_of_a_number_that_was_read": "reads a number from a tensor",
    "programs_data_sizes:sizes_of_a_list": "reads a number from a tensor",
    "programs_data_sizes:a_view_at_a_place_that_was_read": "reads a number from a tensor",
    "programs_control_flow": "chooses at each call which graph to run",
    "programs_control_flow:each_row": "whose effects are unknown",
    "programs_control_flow:each_slice_of_two_tensors_of_which_one_is_transposed": "are unknown",
    "programs_control_flow:a_branch_for_each_row": "whose effects are unknown",
    "programs_control_flow:a_layer_for_each_row": "whose effects are unknown",
    "programs_control_flow:a_scan_with_two_states_from_the_end": "whose effects are unknown",
    "programs_control_flow:a_scan_over_a_transposed_tensor": "whose effects are unknown",
}


@pytest.fixture(scope="module")
def captured_runs(once):
    def make(surroundings):
        groups = (*GROUPS, *THOROUGH)
        return {phase: run_all(surroundings, *groups, **CAPTURED) for phase in ("cold", "warm")}

    return once("captured", make)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*NAMES, *THOROUGH_NAMES])
def test_a_captured_program_is_right_cold_and_restarted(captured_runs, name):
    cold, warm = captured_runs["cold"][name], captured_runs["warm"][name]
    skip_on_old(name, cold, warm)
    assert cold["difference"] is None
    assert warm["difference"] is None
    assert warm["digest"] == cold["digest"], "restored and cold differ in a bit"
    assert (warm["misses"], warm["bypasses"]) == (0, 0), [warm["reasons"], warm["warnings"]]
    assert warm["loaded"] == []
    reason = NOT_CAPTURED.get(name, NOT_CAPTURED.get(name.partition(":")[0], "nothing"))
    for run in (cold, warm):
        assert all(reason in line for line in run["warnings"])


@pytest.mark.thorough
def test_every_program_was_run(runs):
    assert set(runs["cold"]) == {*NAMES, CUSTOM_OP}


@pytest.mark.thorough
def test_the_third_of_three_shapes_is_served_by_the_dynamic_graph(runs):
    cold = runs["cold"]["programs_torch:three_shapes_of_which_the_third_is_served_dynamically"]
    assert cold["misses"] == 2


@pytest.mark.thorough
def test_static_shapes_are_compiled_one_by_one(runs):
    assert runs["cold"]["programs_torch:static_shapes_only"]["misses"] == 3


@pytest.mark.thorough
def test_a_changing_float_is_compiled_twice_at_most(runs):
    assert runs["cold"]["programs_torch:a_float_argument_that_changes"]["misses"] <= 2


@pytest.mark.thorough
def test_sizes_given_as_dynamic_are_compiled_once(runs):
    assert runs["cold"]["programs_torch:dynamic_attention_shapes"]["misses"] == 1
