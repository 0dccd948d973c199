"""What counts as a difference of a new graph from the function, and what as rounding."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from npugx_cache.entry import first_result
from npugx_cache.entry.recheck import differences, tensors_in

HALF, SINGLE = (torch.finfo(kind).eps for kind in (torch.bfloat16, torch.float32))
VALUES = torch.tensor([100.0, 1.0, 0.0])


def near(share):
    """The values, each of them moved by a part of the greatest one."""
    return VALUES + share * VALUES.max()


@pytest.mark.parametrize(
    ("expected", "actual", "step", "allowed"),
    [
        (VALUES, VALUES.clone(), SINGLE, True),
        (VALUES, near(5e-4), SINGLE, True),
        (VALUES, near(5e-3), SINGLE, False),
        (VALUES.double(), near(5e-3).double(), 0.0, False),
        (VALUES, near(0.05), HALF, True),  # a model in half precision with a finer result
        (VALUES, near(0.2), HALF, False),
        (torch.zeros(2), torch.full((2,), 1e-4), SINGLE, True),  # what is left of large numbers
        (torch.zeros(2), torch.full((2,), 1e-2), SINGLE, False),
        (VALUES * math.nan, VALUES * math.nan, SINGLE, True),
        (VALUES, VALUES * math.nan, HALF, False),
        (VALUES * math.inf, VALUES, HALF, True),  # eager lacks the range, and the graph does not
        (torch.tensor([3e38, 1.0]), torch.tensor([3e38, 2.0]), SINGLE, False),  # as in a mask
        (torch.tensor([1, 2]), torch.tensor([1, 3]), HALF, False),
        (torch.tensor([True]), torch.tensor([False]), HALF, False),
        (torch.zeros(0), torch.zeros(0), SINGLE, True),
        (VALUES.expand(2, 3), VALUES.repeat(2, 1), SINGLE, True),
        (torch.tensor(1 + 1j), torch.tensor(1 + 2j), SINGLE, False),
    ],
)
def test_rounding_is_that_of_the_coarsest_type(expected, actual, step, allowed):
    assert first_result.Rounding(step, None).allows(expected, actual) is allowed


def test_every_part_of_a_large_tensor_counts(monkeypatch):
    monkeypatch.setattr(first_result, "_PART", 2)
    rounding = first_result.Rounding(SINGLE, None)
    assert rounding.allows(torch.ones(5), torch.ones(5))
    assert not rounding.allows(torch.ones(5), torch.tensor([1.0, 1.0, 1.0, 1.0, 2.0]))


@pytest.mark.parametrize(
    ("expected", "actual", "path"),
    [
        ({"a": [1, 2]}, {"a": [1, 3]}, "x['a'][1]"),
        ([1], (1,), "x"),
        ([1], [1, 2], "x"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "x"),
        ({object(): 1}, {object(): 1}, None),  # what a call makes is another one in each run
        ({object(): 1}, {object(): 2}, "x[object 0]"),
        (SimpleNamespace(a=1), SimpleNamespace(a=2), "x.a"),
        (SimpleNamespace(a=1), SimpleNamespace(), "x"),
        (None, torch.ones(1), "x"),
        (torch.ones(2), torch.ones(2).double(), "x"),
        (0.1, 0.1 + 1e-12, "x"),
        (math.nan, math.nan, None),
        (torch.ones(2), torch.ones(2), None),
    ],
)
def test_the_path_to_a_difference_is_told(expected, actual, path):
    assert next(differences("x", expected, actual), None) == path


def test_the_tensors_of_a_result_are_counted_once():
    one, other = torch.ones(1), torch.ones(2)
    held = SimpleNamespace(a=[one, {"b": other}], c=one)
    held.itself = held
    assert {id(each) for each in tensors_in(held)} == {id(one), id(other)}
    assert len(list(tensors_in(held))) == 2


def test_where_somebody_else_writes_meanwhile_nothing_is_refused():
    shared = torch.ones(2)

    def graph(x):
        return x + shared.add_(1)  # stands for another thread, which writes between the runs

    rounding = first_result.Rounding(SINGLE, None)
    answer = first_result.compare(lambda x: x, graph, rounding, (torch.ones(2),), {}, 0)
    assert answer == first_result.Uncompared("a second run of the graph gives something else")


def test_an_error_of_the_function_does_not_end_the_call():
    def fails(x):
        raise ValueError(x)

    rounding = first_result.Rounding(SINGLE, None)
    answer = first_result.compare(fails, lambda x: x, rounding, (torch.ones(2),), {}, 0)
    assert answer == first_result.Uncompared("ValueError was raised")


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.float8_e4m3fn])
def test_numbers_are_compared_also_where_torch_has_no_equal_for_their_type(dtype):
    rounding = first_result.Rounding(0.0, None)
    x = torch.arange(4.0)
    assert rounding.allows((x * 3).to(dtype), (x * 3).to(dtype))
    assert not rounding.allows((x * 3).to(dtype), (x * 4).to(dtype))
