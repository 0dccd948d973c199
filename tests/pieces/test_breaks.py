"""`fullgraph=None`: what can't be one graph runs in pieces, cold and restarted as eager does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from npugx_cache import Uncacheable, cache_compile

sys.path.insert(0, str(Path(__file__).parent))
from breaking import PROGRAMS

HERE = Path(__file__).parent
SCRIPT = HERE / "run_breaking.py"
EAGER = ("generators",)
"""Programs of which Dynamo makes no graph."""
PLACES = {"prints": ("in the middle",), "detector": ("while order.numel() > 0", "box.tolist()")}
"""Text of lines that the warning has to name."""


def checked(found, name):
    hits, misses, bypasses, stored, entries = found["info"]
    assert found["difference"] is None
    assert found["printed"]
    (warning,) = found["warnings"]
    assert "breaking.py:" in warning
    assert all(text in warning for text in PLACES.get(name, ()))
    assert bool(bypasses) is (name in EAGER)
    assert len(found["explained"]) == entries + 1
    return hits, misses, stored


def cold_and_restarted(surroundings, *names):
    cold = surroundings.run(SCRIPT, *names, PYTHONHASHSEED="1")
    warm = surroundings.run(SCRIPT, *names, PYTHONHASHSEED="2")
    for name, found in cold.items():
        hits, misses, stored = checked(found, name)
        assert misses == stored
        assert checked(warm[name], name) == (hits + misses, 0, 0)
        assert not warm[name]["traced"]
        assert [row[0] for row in warm[name]["explained"]] == [row[0] for row in found["explained"]]
        assert all("piece" in row[1] and ": used" in row[1] for row in warm[name]["explained"][1:])
    return cold


def test_a_print_in_the_middle(surroundings):
    cold = cold_and_restarted(surroundings, "prints")["prints"]
    assert cold["info"] == [0, 4, 0, 4, 4]

    pieces = [entry for entry, *_ in cold["explained"][1:]]
    function = "breaking.prints.<locals>.f"
    (note,) = (row for row in surroundings.listing() if row["kind"] == "bypass")
    assert (note["function"], note["pieces"]) == (function, pieces)
    shown = {row["entry"]: row for row in surroundings.listing() if row["kind"] == "piece"}
    assert {entry: row["functions"] for entry, row in shown.items()} == {
        entry: [function] for entry in pieces
    }
    assert not any(function in row["function"] for row in shown.values())

    listed = surroundings.command("ls", "--sort", "name", "--filter", "function=f").stdout
    assert listed.count(f"{function} > ") == len(pieces)
    assert surroundings.command("misses", "--function", "f").stdout.count(function) == len(pieces)
    for command in ("show", "readable"):
        text = surroundings.command(command, note["entry"]).stdout
        assert all(piece in text for piece in pieces)
        assert "in the middle" in text


@pytest.mark.thorough
def test_all_programs(surroundings):
    found = cold_and_restarted(surroundings)
    assert set(found) == set(PROGRAMS)
    assert found["detector"]["info"][1] >= 5


def breaking(x):
    y = x * 2
    print("in the middle")
    return y + 1


@pytest.mark.parametrize("value", [True, None, False])
def test_true_refuses_and_the_others_break(tmp_path, value, caplog):
    cached = cache_compile(breaking, fullgraph=value, cache_dir=tmp_path)
    assert torch.equal(cached(torch.ones(2)), torch.full((2,), 3.0))
    info = cached.cache_info()
    assert (info.misses, info.bypasses) == ((0, 1) if value else (2, 0))
    how = "uncached" if value else "in pieces"
    (warning,) = [each.message for each in caplog.records if each.name == "npugx_cache"]
    assert f"breaking runs {how}" in warning

    strict = cache_compile(breaking, fullgraph=value, cache_dir=tmp_path, strict=True)
    if value:
        with pytest.raises(Uncacheable, match="print"):
            strict(torch.ones(2))
    else:
        assert torch.equal(strict(torch.ones(2)), torch.full((2,), 3.0))
