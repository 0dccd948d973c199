"""What triage compares, and how it judges a difference."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from npugx_cache.triage import compared, reached

ONE = torch.tensor([1.0, math.nan, -0.0])


@pytest.mark.parametrize(
    ("expected", "actual", "kind"),
    [
        (ONE, ONE.clone(), "equal"),
        (ONE, ONE + 1e-7, "close"),
        (ONE, ONE + 1e-3, "different"),
        (ONE, ONE[:2], "different"),
        (ONE, ONE.double(), "different"),
        (ONE, "1", "different"),
        (torch.arange(3), torch.tensor([0, 1, 3]), "different"),
        (torch.zeros(0), torch.zeros(0), "equal"),
        (torch.tensor(True), torch.tensor(False), "different"),
        (1, 1, "equal"),
        (1, True, "different"),
        (math.nan, math.nan, "equal"),
        (math.nan, 1.0, "different"),
    ],
)
def test_two_values_are_compared_by_bits_and_then_within_tolerances(expected, actual, kind):
    assert compared.worst({"x": expected}, {"x": actual}).kind == kind


def test_the_place_of_the_greatest_difference_is_told():
    actual = torch.zeros(2, 3)
    actual[1, 2], actual[0, 0] = 5, -1
    outcome = compared.worst({"x": torch.zeros(2, 3)}, {"x": actual})
    assert outcome.detail == "x: 2 of 6 elements differ, by up to 5 at [1, 2]"


def test_a_difference_within_that_of_eager_from_itself_is_eagers():
    zero, one = torch.zeros(2), torch.ones(2)
    assert compared.worst({"x": zero}, {"x": one}, {"x": 1.0}).kind == "as eager"
    assert compared.worst({"x": zero}, {"x": one}, {"x": 0.5}).kind == "different"
    assert compared.worst({"x": zero}, {"x": one}, {"y": 1.0}).kind == "different"


def test_a_missing_value_differs():
    assert compared.worst({"x": 1, "y": 1}, {"x": 1}).detail == "y: eager alone gives it"
    assert compared.worst({"x": 1}, {"x": 1, "y": 1}).detail == "y: this stage alone gives it"


def test_tensors_are_found_in_containers_and_objects_but_not_parameters():
    module = torch.nn.BatchNorm1d(2)
    held = SimpleNamespace(kept=[torch.ones(1)], module=module, name="n")
    held.itself = held
    found = reached.leaves({"a": (held, 3)}, "x")
    assert {"x['a'][0].kept[0]", "x['a'][1]"} <= found.keys()
    assert "x['a'][0].name" not in found, "a name or a hash may be another one in each process"
    assert "x['a'][0].module._buffers['running_mean']" in found
    assert not any(isinstance(value, torch.nn.Parameter) for value in found.values())
