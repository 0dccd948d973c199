"""Which entries tell of sizes: those that a call fits in everything but sizes and whole numbers."""

from __future__ import annotations

import pytest
import torch

from npugx_cache.conditions import Conditions, Kind, Step
from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.data import CALL, TensorFact
from npugx_cache.conditions.evaluate import Scope
from npugx_cache.conditions.kinds import live_state
from npugx_cache.entry.size_history import only_sizes_differ

FACT = TensorFact(0, "float32", "cpu", False, 0, (2, 3), (3, 1), ())


def checker(checks, state=None):
    nodes = len({node for of, _ in checks.values() for node in of})
    state = live_state() if state is None else state
    tree = Conditions(
        parents=(-1,) * nodes,
        steps=(int(Step.LOCAL),) * nodes,
        args=("x", "y")[:nodes],
        checks={**checks, Kind.STATE: ((CALL,), (state,))},
        idents=("torch.Tensor",),
        tensors=(FACT,),
    )
    return Checker(tree)


TENSOR = {Kind.TENSOR: ((0,), (0,))}
NUMBER = {Kind.EQUALS: ((0,), (3,))}


@pytest.mark.parametrize(
    ("checks", "value", "expected"),
    [
        (TENSOR, torch.ones(2, 3), True),
        (TENSOR, torch.ones(5, 4), True),
        (TENSOR, torch.ones(3, 2).t(), True),
        (TENSOR, torch.ones(5), False),
        (TENSOR, torch.ones(5, 4, 1), False),
        (TENSOR, torch.ones(5, 4, dtype=torch.float64), False),
        (TENSOR, torch.ones(5, 4, device="meta"), False),
        (TENSOR, torch.ones(5, 4, requires_grad=True), False),
        (TENSOR, torch.nn.Parameter(torch.ones(5, 4), requires_grad=False), False),
        (TENSOR, 5, False),
        (NUMBER, 3, True),
        (NUMBER, 4, True),
        (NUMBER, 4.0, False),
        (NUMBER, True, False),
        (NUMBER, "4", False),
        ({Kind.EQUALS: ((0,), ("a",))}, 4, False),
        ({Kind.EQUALS: ((0,), ("a",))}, "b", False),
        ({Kind.NOT_NONE: ((0,), (None,))}, None, False),
    ],
)
def test_only_sizes_of_tensors_and_whole_numbers_may_differ(checks, value, expected):
    assert only_sizes_differ(checker(checks), Scope({"x": value}, {})) is expected


def test_all_values_must_be_there_and_fit():
    both = checker({Kind.EQUALS: ((0, 1), (3, "a"))})
    assert only_sizes_differ(both, Scope({"x": 4, "y": "a"}, {}))
    assert not only_sizes_differ(both, Scope({"x": 3, "y": "b"}, {}))
    assert not only_sizes_differ(both, Scope({"x": 3}, {}))


def test_another_state_of_torchs_is_no_size():
    state = live_state()
    other = {**state, "grad_mode": not state["grad_mode"]}
    assert not only_sizes_differ(checker(NUMBER, other), Scope({"x": 4}, {}))
