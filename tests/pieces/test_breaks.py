"""`fullgraph=None`: what can't be one graph runs in pieces, cold and restarted as eager does."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch

from npugx_cache import CacheMiss, Uncacheable, cache_compile

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
    if name != "states":  # whose calls are those of its objects
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


@pytest.mark.thorough
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


EDITED = """
import json, sys
import torch
from npugx_cache import cache_compile

def helper(x):
    return x * {factor}

def function(x):
    y = helper(x.sin())
    print({printed!r})
    return y + 1

cached = cache_compile(function, fullgraph=None)
x = torch.ones(3)
right = torch.equal(cached(x), function(x))
reasons = [str(row) for row in cached.explain()]
print(json.dumps([right, cached.cache_info()[:4], "npugx_cache.trace" in sys.modules, reasons]))
"""


@pytest.mark.thorough
def test_an_edit_is_a_miss_with_a_reason_of_what_it_changes(surroundings):
    def run(factor, printed):
        script = surroundings.folder / "edited.py"
        script.write_text(EDITED.format(factor=factor, printed=printed))
        right, counts, traced, reasons = surroundings.run(script, PYTHONDONTWRITEBYTECODE="1")
        assert right
        return counts, traced, reasons

    assert run(2, "here")[:2] == ([0, 2, 0, 2], True)
    assert run(2, "here")[:2] == ([2, 0, 0, 0], False)
    counts, _, reasons = run(3, "here")  # the helper: of two pieces one
    assert counts == [1, 1, 0, 1]
    assert "graph.nodes changed" in reasons[1]
    assert ": used" in reasons[2]
    counts, _, reasons = run(3, "there")  # the function itself: no piece depends on the text
    assert counts == [2, 0, 0, 0]
    assert "print" in reasons[0]


@pytest.mark.thorough
def test_threads_run_pieces_side_by_side(tmp_path):
    def function(x):
        y = x.sin()
        print(end="")
        return y.cos() + x.shape[0]

    cached = cache_compile(function, fullgraph=None, cache_dir=tmp_path)
    wrong = []

    def work(size):
        for _ in range(3):
            x = torch.randn(size, 3)
            if not torch.allclose(cached(x), function(x)):
                wrong.append(size)

    threads = [threading.Thread(target=work, args=(size,)) for size in range(2, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    info = cached.cache_info()
    assert not wrong
    assert info.misses >= 2
    assert info.bypasses == 0


def test_before_a_call_nothing_is_known_of_pieces(tmp_path):
    cached = cache_compile(breaking, fullgraph=None, cache_dir=tmp_path)
    warmed = cached.warm(torch.ones(2))
    assert warmed.entries == 0
    assert "restored or compiled when a call runs" in warmed.refused[0]
    assert cached.cache_info()[:4] == (0, 0, 0, 0)


@pytest.mark.thorough
def test_what_pieces_can_not_do_is_told(tmp_path, caplog):
    def drops(x):
        y = x * 2
        print("in the middle")
        return y + torch.nn.functional.dropout(y, 0.5, training=True)

    cached = cache_compile(drops, fullgraph=None, cache_dir=tmp_path)
    torch.manual_seed(0)
    found = cached(torch.ones(4))
    torch.manual_seed(0)
    assert torch.equal(found, drops(torch.ones(4)))
    assert cached.cache_info()[:4] == (0, 1, 1, 1)
    assert "draws random numbers" in caplog.text
    assert "not stored" in str(cached.explain()[2])
    strict = cache_compile(drops, fullgraph=None, cache_dir=tmp_path, strict=True)
    with pytest.raises(Uncacheable, match="draws random numbers"):
        strict(torch.ones(4))


@pytest.mark.thorough
def test_an_error_of_the_function_is_its_own(tmp_path, monkeypatch):
    def multiplies(x):
        y = x * 2
        print("in the middle")
        return y @ y

    cached = cache_compile(multiplies, fullgraph=None, cache_dir=tmp_path)
    with pytest.raises(RuntimeError) as theirs:
        multiplies(torch.ones(2, 3))
    with pytest.raises(RuntimeError) as ours:
        cached(torch.ones(2, 3))
    assert (type(ours.value), str(ours.value)) == (type(theirs.value), str(theirs.value))
    assert torch.equal(cached(torch.ones(2, 2)), multiplies(torch.ones(2, 2)))

    monkeypatch.setenv("NPUGX_CACHE_ON_MISS", "raise")
    forbidden = cache_compile(multiplies, fullgraph=None, cache_dir=tmp_path)
    with pytest.raises(CacheMiss):
        forbidden(torch.ones(4, 4, dtype=torch.float64))


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
