"""Which calls `NPUGX_CACHE_VERIFY=recompile` must not make twice."""

from __future__ import annotations

import logging

import pytest
import torch

from npugx_cache import cache_compile


class Holder:
    last = 0.0


HOLDER, SEEN = Holder(), []


def sets_an_attribute_of_a_global_object(x):
    HOLDER.last = 1.0
    return x + 1


def appends_to_a_global_list(x):
    SEEN.append(1)
    return x + 1


def only_reads(x):
    return x + 1


@pytest.mark.parametrize(
    ("function", "compared"),
    [
        (sets_an_attribute_of_a_global_object, False),
        (appends_to_a_global_list, False),
        (only_reads, True),
    ],
)
def test_a_call_that_writes_runs_once(tmp_path, monkeypatch, caplog, function, compared):
    cache_compile(function, cache_dir=tmp_path)(torch.ones(3))
    monkeypatch.setenv("NPUGX_CACHE_VERIFY", "recompile")
    SEEN.clear()
    cached = cache_compile(function, cache_dir=tmp_path)
    with caplog.at_level(logging.WARNING, logger="npugx_cache"):
        assert torch.equal(cached(torch.ones(3)), torch.full((3,), 2.0))
    assert cached.cache_info().hits == 1
    assert ("results not compared: it writes to something" not in caplog.text) == compared
    assert len(SEEN) == (function is appends_to_a_global_list)
