"""Options of the backend inductor: Inductor's settings, checked by name without importing it."""

from __future__ import annotations

import pytest
import torch

from npugx_cache import cache_compile
from npugx_cache.backend import options
from npugx_cache.errors import OptionError


def parse(**given):
    return options.parse({name.replace("__", "."): v for name, v in given.items()}, "inductor")


def test_settings_are_factors_by_name_and_value():
    plain = dict(parse().as_factors())
    factors = dict(parse(cpp__min_chunk_size=1, max_autotune=True).as_factors())
    assert factors == {
        **plain,
        "inductor.cpp.min_chunk_size": "1",
        "inductor.max_autotune": "True",
    }
    assert parse(max_autotune=True) != parse(max_autotune=False)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_autotun", True, "unknown option 'max_autotun'"),
        ("remove_cat_ops", True, "unknown option 'remove_cat_ops'"),
        ("capture_limit", 3, "only with triton.cudagraphs=True"),
        ("freezing", True, "set by npugx_cache"),
        ("aot_inductor.output_path", "/", "set by npugx_cache"),
        ("max_autotune", object(), "expected plain data"),
    ],
)
def test_what_can_not_be_set_is_refused_at_decoration(name, value, words):
    with pytest.raises(OptionError, match=words.replace(".", r"\.")):
        cache_compile(torch.relu, backend="inductor", options={name: value})


def test_capture_options_count_once_it_captures():
    parsed = parse(triton__cudagraphs=True, capture_limit=3)
    assert (parsed.captures, parsed.capture_limit) == (True, 3)
    assert not parse().captures
    with pytest.raises(OptionError, match="capture_limit"):
        parse(triton__cudagraphs=True, capture_limit=0)
    with pytest.raises(OptionError, match="unknown option"):
        options.parse({"max_autotune": True})


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
def test_a_value_of_a_wrong_type_is_refused_by_name(tmp_path):
    cached = cache_compile(
        lambda x: x + 1, backend="inductor", options={"max_autotune": 3}, cache_dir=tmp_path
    )
    with pytest.raises(OptionError, match="'max_autotune' must be of type bool, not int"):
        cached(torch.ones(2))
