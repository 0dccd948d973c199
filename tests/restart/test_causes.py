"""Each cause of a miss is named, a day later, by the commands alone: the worker is gone."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import Surroundings

pytestmark = pytest.mark.thorough

PROGRAM = Path(__file__).with_name("causes")


def program(folder, edits=()):
    copy = folder / "program"
    shutil.copytree(PROGRAM, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in edits:
        text = (copy / name).read_text()
        assert text.count(old) == 1
        (copy / name).write_text(text.replace(old, new))
    return copy / "worker.py"


def misses(surroundings):
    return json.loads(surroundings.command("misses", "--format", "json").stdout)["misses"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A folder whose cache has the entry of a first worker."""
    surroundings = Surroundings(tmp_path_factory.mktemp("first", numbered=False))
    info = surroundings.run(program(surroundings.folder), "{}")
    assert (info["misses"], info["stored"]) == (1, 1)
    return surroundings.folder


@dataclass
class Cause:
    """What is different at the second start, and all that the commands say of it."""

    reasons: list[str]
    changes: dict = field(default_factory=dict)
    edits: list = field(default_factory=list)
    variables: dict = field(default_factory=dict)
    flags: list = field(default_factory=list)
    pruned: bool = False


WRAPPER = "at decorators.py:6 in plus.<locals>.decorate.<locals>.wrapped"
BIAS = "self.norm.bias"
CONVERTED = "as after .to() of a model"
CAUSES = {
    "an edited function": Cause(
        ["source of inner.level3 changed at inner.py:4 in level3"],
        edits=[("inner.py", "x * SCALE", "x * SCALE + 0")],
    ),
    "an edited method": Cause(
        ["function.code changed at worker.py:28 in Net.forward"],
        edits=[("worker.py", "            return x\n", "            return x + 0\n")],
    ),
    "an edited decorator": Cause(
        [f"source of decorators.shifted changed {WRAPPER} or at decorators.py:20 in shifted"],
        edits=[("decorators.py", "function(x) + number", "function(x) - number")],
    ),
    "a value of a config": Cause(["self.config.eps was 1e-05, is 1e-06"], changes={"eps": 1e-6}),
    "a global": Cause(["inner.SCALE was 2.0, is 3.0"], changes={"scale": 3.0}),
    "a dtype": Cause(["x: dtype was float32, is float64"], changes={"dtype": "float64"}),
    "a size": Cause(
        ["x: size was (4, 8), is (5, 8); dynamic=True would serve both"],
        changes={"size": [5, 8]},
    ),
    "a converted model": Cause(
        [f"x: dtype was float32, is float64; the same of {BIAS} and others, {CONVERTED}"],
        changes={"to": "float64"},
    ),
    "a variable of the environment": Cause(
        ["os.environ['APP_MODE'] was None, is 'b'"], variables={"APP_MODE": "b"}
    ),
    "training": Cause(["self.training was False, is True"], changes={"train": True}),
    "autocast": Cause(
        ["torch.autocast('cpu') was off with bfloat16, is on with bfloat16"],
        changes={"around": "autocast"},
    ),
    "inference mode": Cause(
        ["torch.is_inference_mode_enabled() was False, is True"], changes={"around": "inference"}
    ),
    "another backend": Cause(
        ["backend was npugraph_ex, is aot_eager"], changes={"arguments": {"backend": "aot_eager"}}
    ),
    "another option": Cause(
        ["option.inplace_pass was True, is False"],
        changes={"arguments": {"options": {"inplace_pass": False}}},
    ),
    "python -O": Cause(["optimize was 0 (python), is 1 (python -O)"], flags=["-O"]),
    "a store that was emptied": Cause(["no entry for this function"], pruned=True),
}


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_of_a_miss_is_named_when_the_worker_is_gone(stored, tmp_path, name):
    cause = CAUSES[name]
    shutil.copytree(stored / "cache", tmp_path / "cache")
    surroundings = Surroundings(tmp_path)
    if cause.pruned:
        assert surroundings.command("prune", "--all", "--yes").returncode == 0
    worker = program(tmp_path, cause.edits)
    changes = json.dumps(cause.changes)
    info = surroundings.run(*cause.flags, worker, changes, **cause.variables)
    assert (info["hits"], info["misses"]) == (0, 1)
    (miss,) = misses(surroundings)
    assert (miss["outcome"], miss["function"]) == ("miss", "__main__.Net.forward")
    assert miss["reasons"] == cause.reasons


def test_without_a_cause_there_is_no_miss(stored, tmp_path):
    """An edit of a function that has a decorator in common with a traced one is no cause."""
    shutil.copytree(stored / "cache", tmp_path / "cache")
    surroundings = Surroundings(tmp_path)
    worker = program(tmp_path, [("decorators.py", "return x * 5", "return x * 6")])
    info = surroundings.run(worker, "{}")
    assert (info["hits"], info["misses"]) == (1, 0)
    assert misses(surroundings) == []
