"""Passes that an engine gives the compiler run at each start, and what they make is not stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run_fusing.py")
TEXT = Path(__file__).with_name("fusing.py").read_text()
CODE = "# more code"


def edited(*edits, **form):
    text = TEXT
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return {"text": text, **form}


COUNTING = (
    (CODE, "self.layer = getattr(self, 'layer', 0) + 1; type(self).uses = self.layer % 2 == 0"),
)
"""A pass that does something else at each run."""
FUSED = {
    "as it is": edited(),
    "a constant of the module": edited(("FACTOR = 1.0", "FACTOR = 2.0"), factor=2.0),
    "a function that a method calls": edited(("value * 1.0", "value * 2.0"), factor=2.0),
    "a value deep in a setting": edited(('{"last": 1.0}', '{"last": 2.0}'), factor=2.0),
    "the environment": edited(("import time", "import os, time"), (CODE, "os.environ.get('X')")),
    "a count": edited(*COUNTING),
}
UNFUSED = {
    "an attribute of the class": edited(("uses = True", "uses = False")),
    "what a pattern closes over": edited(scale=3.0),
    "where the pass applies": edited(("return True", "return size > 1")),
}


def run(surroundings, forms):
    file = surroundings.folder / "forms.json"
    file.write_text(json.dumps(forms))
    found = surroundings.run(SCRIPT, file)
    for name, each in found.items():
        assert each["difference"] == 0.0, name
        # `load` is not given the passes, so the engine gets no handle where it has passes.
        assert each["handle"] == (forms[name].get("config") is not None), name
    return found


@pytest.mark.thorough
def test_passes_run_at_each_start_whatever_they_are_and_nothing_is_stored(surroundings):
    for _ in range(2):
        found = run(surroundings, {**FUSED, **UNFUSED})
        for name, each in found.items():
            assert each["info"] == [0, 0, 1, 0], name
            assert each["runs"] == 1, name
            assert each["fused"] == (name in FUSED), name
        (warning,) = found["as it is"]["warnings"]
        assert "nothing tells whether they are the same in another process" in warning
    assert "layer" in found["a count"]["left"]  # a pass keeps what a run leaves on it


@pytest.mark.thorough
def test_passes_that_fail_or_do_not_fit_are_named_and_the_results_are_right(surroundings):
    forms = {
        "raises": edited((CODE, "raise KeyError('own')")),
        "writes": edited(writes=True),
        "inductor": edited(config="post_grad_custom_post_pass"),
    }
    found = run(surroundings, forms)
    assert [found[name]["fused"] for name in forms] == [False] * 3
    assert [found[name]["info"][1] for name in forms] == [0, 0, 1]
    told = {name: " ".join(found[name]["warnings"]) for name in forms}
    assert "a pass of the engine raises KeyError('own')" in told["raises"]
    assert "writes to a tensor" in told["writes"]
    assert "for Inductor are not run: Pass" in told["inductor"]
    again = run(surroundings, {"inductor": forms["inductor"]})
    assert again["inductor"]["info"] == [1, 0, 0, 0]
