"""Which layer a triage names, by what its stages came to."""

from __future__ import annotations

import pytest

from npugx_cache.cli.triage_stages import TITLES, Ended, Stage, judge_stage
from npugx_cache.cli.triage_verdict import verdict

ORDER = [way for way in TITLES if way != "bisect"]


def begin(call=0):
    return {"event": "begin", "call": call, "function": "f"}


def end(call=0, kind="equal", detail="", **more):
    more = {"draws": False, "lookup": [], "reasons": [], "seconds": 1.0, **more}
    return {"event": "end", "call": call, "function": "f", "kind": kind, "detail": detail, **more}


EAGER = [begin(0), end(0), begin(1), end(1)]
DRAWING = [begin(0), end(0, draws=True)]
WELL = Ended(0, "")


@pytest.mark.parametrize(
    ("way", "events", "ended", "eager", "kind", "call"),
    [
        ("cold", EAGER, WELL, EAGER, "equal", 0),
        ("cold", [end(0), end(1, "close", "x")], WELL, EAGER, "close", 1),
        ("cold", [end(0, "different"), end(1, "raised")], Ended(1, "x"), EAGER, "different", 0),
        ("cold", [end(0), begin(1)], Ended(-11, ""), EAGER, "crashed", 1),
        ("cold", [end(0), begin(1)], Ended(None, ""), EAGER, "timed out", 1),
        ("cold", [], Ended(1, "ImportError: x"), EAGER, "failed", None),
        ("cold", [begin(0)], WELL, EAGER, "failed", 0),
        ("cold", [end(0)], WELL, EAGER, "inputs", None),
        ("cold", [end(0), end(1, lookup=["misses"])], WELL, EAGER, "equal", 0),
        ("restored", [end(0), end(1, lookup=["misses"])], WELL, EAGER, "missed", 1),
        ("traced", [end(0, lookup=["bypasses"])], WELL, EAGER[:2], "uncached", 0),
        ("aot_eager", [end(0, "different")], WELL, DRAWING, "random", 0),
        ("eager again", [end(0, "different")], WELL, DRAWING, "different", 0),
    ],
)
def test_a_stage_is_judged_by_its_first_finding(way, events, ended, eager, kind, call):
    stage = judge_stage(way, events, ended, "log", eager)
    assert (stage.kind, stage.call) == (kind, call)


def stages(way, kind):
    """All stages up to this one, which alone is not equal."""
    ways = ORDER[: ORDER.index(way) + 1]
    kinds = ["equal"] * (len(ways) - 1) + [kind]
    rows = zip(ways, kinds, strict=True)
    return [Stage(way, kind, "why", 1, "f", (1.0,), 0, "log") for way, kind in rows]


@pytest.mark.parametrize(
    ("way", "kind", "about", "layer", "step"),
    [
        ("eager", "raised", {}, "the function itself", "Correct the function"),
        ("eager again", "different", {}, "the function itself", "triage again"),
        ("eager again", "inputs", {}, "the inputs", "from a seed"),
        ("dynamo", "different", {}, "torch.compile (Dynamo)", "FOLDER/program.py"),
        ("aot_eager", "crashed", {}, "torch's lowering", "TORCHDYNAMO_REPRO_AFTER=aot"),
        ("traced", "different", {}, "npugx_cache: lowering", "Attach FOLDER"),
        ("traced", "uncached", {}, "npugx_cache: refused", "docs/refusals.md"),
        ("passes", "different", {}, "npugx_cache: graph passes", 'backend="aot_eager"'),
        ("passes", "different", {"backend": "inductor"}, "Inductor's", 'backend="npugraph_ex"'),
        ("cold", "different", {}, "npugx_cache: capture", 'Call with options={"force_eager"'),
        (
            "cold",
            "raised",
            {"options": {"clone_output": "False"}},
            "npugx",
            "Leave clone_output out",
        ),
        ("restored", "different", {}, "npugx_cache: restore", "NPUGX_CACHE=off"),
        ("restored", "missed", {}, "npugx_cache: restore", "equal at each start"),
        ("restored", "close", {}, "", "production"),
    ],
)
def test_the_first_finding_names_the_layer_and_a_step(way, kind, about, layer, step):
    found = verdict(stages(way, kind), {}, about, "FOLDER")
    assert found.layer.startswith(layer)
    assert bool(found.layer) == bool(layer)
    assert step in found.next_step


@pytest.mark.parametrize(
    ("name", "layer", "step"),
    [
        ("remove_copies", "npugx_cache: graph passes", '{"remove_noop_ops": False}'),
        ("workspaces", "npugx_cache: graph passes", 'backend="aot_eager"'),
        ("pattern_fusion_pass", "your pattern", "the replacement"),
        ("post_grad_custom_pre_pass", "your pass m.f", "Correct m.f"),
    ],
)
def test_a_pass_at_fault_is_named_with_its_switch(name, layer, step):
    found = {"name": name, "detail": "why", "raises": False, "shows": True}
    about = {"options": {"post_grad_custom_pre_pass": "m.f"}}
    answer = verdict(stages("passes", "different"), found, about, "FOLDER")
    assert answer.layer.startswith(layer)
    assert step in answer.next_step
    assert repr(name) in answer.said
    assert "FOLDER/program.py shows it" in answer.said
