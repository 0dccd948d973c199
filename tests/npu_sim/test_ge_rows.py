"""Changes of the matrix with the backend `ge`: each misses, with a reason (P1, P4).

A sample of the rows of `tests/soundness`, with their tensors and models on the simulated NPU.
"""

import os
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)
if not metadata.version("torch_npu").startswith("2.13."):
    pytest.skip("GE mode knows the converters of torch_npu 2.13", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[1] / "soundness"))

from matrix import ROWS
from processes import SECONDS, write

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(4 * SECONDS)]

SCRIPT = Path(__file__).parent / "run_ge_rows.py"
PASSED_ON = ("PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD")
ON_NPU = {
    "torch.randn(*shape, generator=torch.Generator().manual_seed(seed))": (
        "torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).npu()"
    ),
    "Model().eval()": "Model().eval().npu()",
}
NAMES = Path(__file__).with_name("ge_rows.txt").read_text().split()


def on_npu(row):
    files = dict(row.files)
    for old, new in ON_NPU.items():
        files = {name: text.replace(old, new) for name, text in files.items()}
    return replace(row, files=files)


@pytest.fixture(scope="session")
def answers(once):
    """Each row cold, and changed in a process that compiles nothing."""

    def make(surroundings):
        rows = {name: on_npu(ROWS[name]) for name in NAMES}
        unchanged, changed = surroundings.folder / "tree", surroundings.folder / "changed"
        write(unchanged, rows, changed=False)
        write(changed, rows, changed=True)
        kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}

        def run(folder, phase, **environment):
            command = "-W", "ignore", SCRIPT, folder, phase, *NAMES
            return surroundings.start(*command, **kept, **environment).result(timeout=SECONDS)

        cold = run(unchanged, "cold")
        return {"cold": cold, "changed": run(changed, "warm", NPUGX_CACHE_RECOMPILE_LIMIT="0")}

    return once("ge_rows", make)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_it_gives_eagers_result(answers, name):
    cold = answers["cold"][name]
    assert cold["difference"] is None
    assert (cold["misses"], cold["bypasses"], cold["warnings"]) == (1, 0, "")


@pytest.mark.parametrize("name", NAMES)
def test_a_change_is_not_a_hit_and_the_miss_says_what_changed(answers, name):
    changed = answers["changed"][name]
    assert (changed["hits"], changed["misses"], changed["bypasses"]) == (0, 0, 1)
    assert changed["reasons"]
    for text in ROWS[name].says:
        assert any(text in reason for reason in changed["reasons"])


def test_the_sample_is_of_all_kinds_of_changes():
    assert len({*NAMES}) == 60
    assert len({ROWS[name].category for name in NAMES}) >= 9
