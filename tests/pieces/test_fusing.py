"""Passes that an engine gives the compiler run at a compile, and count by code and settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run_fusing.py")
TEXT = Path(__file__).with_name("fusing.py").read_text()


def edited(*edits, **form):
    text = TEXT
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return {"text": text, **form}


STATE, CODE = "# more state", "# more code"
IMPORTED = """import sys
import types

helpers = types.ModuleType("fusing_helpers")
helpers.FACTOR = 1.0
sys.modules["fusing_helpers"] = helpers

import torch._inductor"""
USED = (CODE, "from fusing_helpers import FACTOR; FACTOR + 0")
DERIVED = ("class Pass:", "class Patterns(pm.PatternMatcherPass):\n    pass\n\n\nclass Pass:")
OWN = ("patterns = pm.PatternMatcherPass(", "patterns = Patterns(")
OTHER = {
    "what code imports": edited(("import torch._inductor", IMPORTED), USED),
    "another value in what code imports": edited(
        ("import torch._inductor", IMPORTED.replace("1.0", "2.0")), USED
    ),
    "a class derived from torch's": edited(DERIVED, OWN),
    "what it closes over": edited(DERIVED, OWN, scale=3.0),
    "a constant of the module": edited(("FACTOR = 1.0", "FACTOR = 2.0"), factor=2.0),
    "a function that a method calls": edited(("value * 1.0", "value * 2.0"), factor=2.0),
    "a value deep in a setting": edited(('{"last": 1.0}', '{"last": 2.0}'), factor=2.0),
    "an attribute of the class": edited(("uses = True", "uses = False")),
    "what a pattern closes over": edited(scale=3.0),
    "the code of the pass": edited((CODE, "self.matched += 0")),
    "the code of the constructor": edited((STATE, "self.also = 1")),
    "one more pass": edited(("    return manager", "    manager.passes *= 2\n    return manager")),
    "a call that changes nothing": edited((CODE, "len('ab')")),
    "a tensor of ones": edited((STATE, "self.kept = torch.ones(1)"), (CODE, "self.kept.sum()")),
    "a tensor of zeros": edited((STATE, "self.kept = torch.zeros(1)"), (CODE, "self.kept.sum()")),
    "the range": edited(sizes=[1, 128]),
    "where the pass applies": edited(("return True", "return size > 1")),
}
"""Each has a key of its own."""
SAME = {
    "as it was": edited(),
    "comments and lines": edited(("class Pass:", "# a comment\n\nclass Pass:")),
    "what no code reads": edited(
        ("    return manager", "    manager.passes[0].unread = object()\n    return manager")
    ),
}
REFUSED = {
    "a lock that is read": (
        edited((STATE, "self.lock = threading.Lock()"), (CODE, "self.lock.locked()")),
        "passes[0].lock: an object of type _thread.lock has no name",
    ),
    "the environment": (
        edited(("import time", "import os\nimport time"), (CODE, "os.environ.get('X')")),
        "__call__ asks for environ",
    ),
    "a module that is not loaded": (
        edited((CODE, "\n        if self.matched > 9:\n            import of_nobody")),
        "imports of_nobody, which is not loaded",
    ),
    "names that are computed": (
        edited((CODE, "getattr(self, 'match' + 'ed')")),
        "configuration.lock",
    ),
    "an object that a run leaves": (
        edited((CODE, "self.last = [graph]")),
        "a run of the passes changes last",
    ),
}
"""What can't be part of a key: the passes run, and nothing is stored."""


def run(surroundings, forms, **environment):
    file = surroundings.folder / "forms.json"
    file.write_text(json.dumps(forms))
    found = surroundings.run(SCRIPT, file, **environment)
    for name, each in found.items():
        assert each["difference"] == 0.0, name
        # `load` is not given the passes, so the engine gets no handle where it has passes.
        assert each["handle"] == (forms[name].get("config") is not None), name
    return found


@pytest.mark.thorough
def test_each_change_of_a_pass_is_a_miss_and_what_can_not_matter_a_hit(surroundings):
    cold = run(surroundings, {"base": edited()}, PYTHONHASHSEED="1")["base"]
    assert cold["info"] == [0, 1, 0, 1]
    assert (cold["runs"], cold["fused"], cold["warnings"]) == (1, True, [])
    assert cold["left"] == ["patterns"]  # a run leaves nothing on a pass

    found = run(surroundings, {**SAME, **OTHER}, PYTHONHASHSEED="2")
    for name in SAME:
        assert (found[name]["info"], found[name]["runs"]) == ([1, 0, 0, 0], 0), name
        assert found[name]["fused"], name
    for name in OTHER:
        assert (found[name]["info"], found[name]["runs"]) == ([0, 1, 0, 1], 1), name
    unfused = {name for name, each in found.items() if not each["fused"]}
    assert unfused == {
        "an attribute of the class",
        "what a pattern closes over",
        "what it closes over",
        "where the pass applies",
    }

    again = run(surroundings, {**OTHER, **SAME}, PYTHONHASHSEED="3")
    for name, each in again.items():
        assert (each["info"], each["runs"]) == ([1, 0, 0, 0], 0), name
        assert each["fused"] == found[name]["fused"], name


@pytest.mark.thorough
def test_a_pass_that_no_key_can_cover_runs_and_nothing_is_stored(surroundings):
    forms = {name: form for name, (form, _) in REFUSED.items()}
    for _ in range(2):
        found = run(surroundings, forms)
        for name, (_, reason) in REFUSED.items():
            each = found[name]
            assert each["info"] == [0, 0, 1, 0], name
            assert each["fused"], name
            assert each["runs"] >= 1, name
            assert any(reason in warning for warning in each["warnings"]), each["warnings"]


@pytest.mark.thorough
def test_passes_that_fail_or_do_not_fit_are_named_and_the_results_are_right(surroundings):
    forms = {
        "raises": edited((CODE, "raise KeyError('own')")),
        "writes": edited(writes=True),
        "inductor": edited(config="post_grad_custom_post_pass"),
    }
    found = run(surroundings, forms)
    assert [found[name]["fused"] for name in forms] == [False] * 3
    assert [found[name]["info"] for name in forms] == [[0, 0, 1, 0], [0, 0, 1, 0], [0, 1, 0, 1]]
    told = {name: " ".join(found[name]["warnings"]) for name in forms}
    assert "a pass of the engine raises KeyError('own')" in told["raises"]
    assert "writes to a tensor" in told["writes"]
    assert "for Inductor are not run: Pass" in told["inductor"]
