"""The examples of the documents that users come with run here with the smallest edit.

Each runs in single and in half precision, on a CPU, or with
`bash tests/npu_sim/run tests/migration` on the simulated NPU. With `cache_compile`, a cold and a
restarted process give eager's results; with `torch.compile`, whose only edit is the name of the
backend, one process does.
"""

import os
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from npugx_cache import version

sys.path.insert(0, str(Path(__file__).parent))

from documents import EXAMPLES, OF_TORCH_COMPILE, ON_CPU_ALONE, ON_NPU_ALONE, TRAINING

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "migration.md"
DEVICE = os.environ.get("NPUGX_TEST_DEVICE", "cpu")
PASSED_ON = ("TORCH_DEVICE_BACKEND_AUTOLOAD",)
PRECISIONS = ("float16", "float32")
UNCAPTURED = ("ladder", "eager_ladder", *ON_NPU_ALONE)
OLD = {
    "library_operator": ((2, 13), "fails to trace an operator that a process registers twice"),
    "tutorial": ((2, 12), "traces a graph on the CPU and the device, which is not captured"),
}
"""What works since which torch, and what an older one does."""


def skip_on_old(name):
    since, reason = OLD.get(name, ((0, 0), ""))
    if DEVICE == "npu" and version.minor_version(torch.__version__) < since:
        pytest.skip(f"torch before {since[0]}.{since[1]} {reason}")


def _knows_ge():
    return metadata.version("torch_npu").startswith("2.13.")


def as_diff(old, new):
    """An edit as the page shows it. A line that stays has new ones below it."""
    first, *more = new.splitlines() or [""]
    lines = [f" {old}"] if first == old else [f"-{old}", *([f"+{first}"] if new else [])]
    return "\n".join([*lines, *(f"+{line}" for line in more)]) + "\n"


EDITS = [as_diff(*edit) for example in EXAMPLES.values() for edit in example.edits.items()]


def blocks():
    return re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_each_edit_of_an_example_is_on_the_page():
    assert {edit for edit in EDITS if not any(edit in block for block in blocks())} == set()


def test_each_changed_line_of_the_page_is_an_edit_that_an_example_runs():
    known = {line for edit in EDITS for line in edit.splitlines()}
    changed = [line for block in blocks() for line in block.splitlines() if line[0] in "-+"]
    assert len(changed) > 20
    assert [line for line in changed if line not in known] == []


def start(surroundings, example):
    scripts = surroundings.folder / "scripts"
    scripts.mkdir(exist_ok=True)
    for name in PRECISIONS:
        script = example.script(device=DEVICE, half=name == "float16")
        (scripts / f"{name}.py").write_text(script)
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    environment["NPUGX_TEST_MODEL"] = str(surroundings.folder / "qwen3")
    environment["PYTHONPATH"] = f"{HERE}:{os.environ.get('PYTHONPATH', '')}:{HERE.parents[1]}"
    arguments = scripts, DEVICE, example.cached, *example.results
    return surroundings.start("-W", "ignore", HERE / "run_example.py", *arguments, **environment)


@pytest.mark.thorough
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_cold_and_restarted(surroundings, name):
    skip_on_old(name)
    if DEVICE != "npu" and name in ON_NPU_ALONE:
        pytest.skip("GE is the graph engine of an NPU: bash tests/npu_sim/run tests/migration")
    if DEVICE == "npu" and name in ON_NPU_ALONE and not _knows_ge():
        pytest.skip("GE mode knows the converters of torch_npu 2.13")
    example = EXAMPLES[name]
    first, second = (start(surroundings, example).result() for _ in range(2))
    for precision in PRECISIONS:
        cold, again = first[precision], second[precision]
        assert f"torch.{precision}" in cold["dtypes"]
        assert again["digest"] == cold["digest"]
        if DEVICE == "npu" and name in ON_CPU_ALONE:
            assert (cold["stored"], again["stored"], again["hits"]) == (0, 0, 0)
            assert cold["bypasses"] > 0
            continue
        counts = [(run["misses"], run["stored"], run["bypasses"]) for run in (cold, again)]
        assert counts == [(example.entries, example.entries, 0), (0, 0, 0)]
        assert (again["hits"], again["traced"]) == (example.entries, 0)
        if DEVICE == "npu":
            assert (again["captured"] > 0) == (name not in UNCAPTURED)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OF_TORCH_COMPILE)
def test_torch_compile_needs_no_edit_but_the_name_of_the_backend(surroundings, name):
    skip_on_old(name)
    worker = start(surroundings, OF_TORCH_COMPILE[name])
    for precision, found in worker.result().items():
        assert f"torch.{precision}" in found["dtypes"]
        assert found["traced"] > 0
        assert (found["captured"] > 0) == (DEVICE == "npu" and name not in UNCAPTURED)
    assert "without optimisation" not in worker.stderr
    assert "uncaptured" not in worker.stderr


@pytest.mark.thorough
def test_an_example_that_trains_raises_because_results_carry_no_grad(surroundings):
    worker = start(surroundings, TRAINING)
    _, said = worker.process.communicate(timeout=300)
    assert worker.process.returncode
    assert "does not require grad" in said
