"""What is told of a function that runs in pieces, word for word."""

from __future__ import annotations

import inspect

import pytest
import torch

from npugx_cache import CacheMiss, cache_compile
from npugx_cache.config import load
from npugx_cache.counters import PROCESS, Counters
from npugx_cache.pieces.of_function import FunctionPieces


def breaking(x):
    y = x * 2
    print(end="")
    return y + 1


def breaking_twice(x):
    y = x * 2
    print(end="")
    y = y + 1
    print(end="")
    return y * 3


def without_a_graph(x):
    print(end="")
    return [1]


def breaking_often(x):
    print(end="0")
    print(end="1")
    print(end="2")
    print(end="3")
    print(end="4")
    print(end="5")
    print(end="6")
    print(end="7")
    print(end="8")
    return x + 1


def why(function, folder):
    """Why the function can't be one graph, as another cache says."""
    cached = cache_compile(function, cache_dir=folder / "other")
    cached(torch.ones(2))
    (refusal,) = cached.explain()
    (reason,) = refusal.reasons
    return reason


def in_pieces(function, folder, **settings):
    return cache_compile(function, fullgraph=None, cache_dir=folder / "cache", **settings)


def run_and_list(cached, folder):
    cached(torch.ones(2))
    return [row.entry for row in cached.explain()][1:]


def told(cached):
    return [(row.entry, *row.reasons) for row in cached.explain()]


def warnings(caplog):
    return [each.getMessage() for each in caplog.records if each.name == "npugx_cache"]


def test_one_break(tmp_path, caplog):
    reason = why(breaking, tmp_path)
    assert f"test_told.py:{breaking.__code__.co_firstlineno + 2} in breaking" in reason
    caplog.clear()
    first = in_pieces(breaking, tmp_path)
    entries = run_and_list(first, tmp_path)
    assert len(entries) == 2
    head = f"runs in pieces, because it can't be one graph: {reason}"
    assert told(first) == [
        ("", head),
        (entries[0], "piece 1: compiled: 1 inputs: mul: no entry for this graph"),
        (entries[1], "piece 2: compiled: 1 inputs: add: no entry for this graph"),
    ]
    assert first.cache_info()[:5] == (0, 2, 0, 2, 2)
    assert warnings(caplog) == [f"{__name__}.breaking {head}"]

    torch.compiler.reset()
    first(torch.ones(2))
    assert first.cache_info()[:3] == (2, 2, 0)
    assert warnings(caplog) == [f"{__name__}.breaking {head}"]  # once


def test_restored_pieces(tmp_path, caplog):
    in_pieces(breaking, tmp_path)(torch.ones(2))
    torch.compiler.reset()
    other = in_pieces(breaking, tmp_path, strict=True)  # other settings: another backend of Dynamo
    caplog.clear()
    other(torch.ones(2))
    head, *rows = told(other)
    assert [row[1] for row in rows] == [
        "piece 1: used, because its conditions hold",
        "piece 2: used, because its conditions hold",
    ]
    assert other.cache_info()[:5] == (2, 0, 0, 0, 2)
    assert warnings(caplog) == [f"{__name__}.breaking {head[1]}"]


def test_pieces_that_are_not_stored(tmp_path, monkeypatch):
    monkeypatch.setenv("NPUGX_CACHE", "off")
    cached = in_pieces(breaking, tmp_path)
    cached(torch.ones(2))
    assert told(cached)[1:] == [
        ("", "piece 1: compiled, and not stored"),
        ("", "piece 2: compiled, and not stored"),
    ]


@pytest.mark.parametrize(
    ("function", "lines", "more"),
    [(breaking_twice, (2, 4), ""), (breaking_often, range(1, 9), "; and 1 more")],
)
def test_several_breaks(function, lines, more, tmp_path, caplog):
    reason = why(function, tmp_path)
    caplog.clear()
    cached = in_pieces(function, tmp_path)
    cached(torch.ones(2))
    text, first = inspect.getsource(function).splitlines(), function.__code__.co_firstlineno
    at = [(f":{first + line} in ", f"`{text[line].strip()}`") for line in lines]
    each = [
        f"({number}) {reason.replace(at[0][0], place).replace(at[0][1], source)}"
        for number, (place, source) in enumerate(at, 1)
    ]
    head = f"runs in pieces, because it can't be one graph: {'; '.join(each)}{more}"
    assert told(cached)[0] == ("", head)
    assert warnings(caplog) == [f"{__name__}.{function.__name__} {head}"]


def test_no_graph(tmp_path, caplog):
    reason = why(without_a_graph, tmp_path)
    cached = in_pieces(without_a_graph, tmp_path)
    caplog.clear()
    for calls in (1, 2):
        cached(torch.ones(2))
        assert cached.cache_info()[:5] == (0, 0, calls, 0, 0)
    head = "runs uncached, no part of it being a graph, because it can't be one graph: " + reason
    assert told(cached) == [("", head)]
    assert warnings(caplog) == [f"{__name__}.without_a_graph {head}"]


def test_a_store_that_is_gone_keeps_nothing_from_being_told(tmp_path, caplog):
    cached = in_pieces(breaking, tmp_path)
    pieces = FunctionPieces(cached._recipe, load(cache_dir=tmp_path), Counters(PROCESS))
    pieces.record_pieces("because", "ab" * 32, None, str.upper)
    (warning,) = warnings(caplog)
    assert warning.startswith(f"{__name__}.breaking runs in pieces")
    assert warning.endswith("because it can't be one graph: because")


def test_a_miss_that_is_forbidden_is_raised_from_a_piece(tmp_path, monkeypatch):
    monkeypatch.setenv("NPUGX_CACHE_ON_MISS", "raise")
    torch.compiler.reset()
    cached = in_pieces(breaking, tmp_path)
    with pytest.raises(CacheMiss):
        cached(torch.ones(2))
