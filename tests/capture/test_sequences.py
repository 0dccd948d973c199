"""Random sequences of calls: tensors kept, moved, freed, shared and passed back, against eager."""

import functools

import pytest
import torch
from capture_programs import agree, graph_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npugx_cache.backend.compile import compile_graph


def attend(state, x, weight, n):
    """Writes to an input, returns views of inputs, shared and fresh results, and a number."""
    state[: x.shape[0]].add_(x.sum())
    hidden = (x @ weight) * n
    return hidden, hidden[:1], state.view(-1), x, state.sum() + n, n


@functools.cache
def traced(device):
    square = torch.ones(4, 4, device=device)
    return graph_of(attend, (square, square[:3], square, 5), static=[2])


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "clone_input": st.booleans(),
        "clone_output": st.booleans(),
        "force_recapture": st.booleans(),
        "capture_limit": st.integers(1, 4),
    },
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "size": st.integers(1, 4),
            "n": st.integers(0, 2),
            "state": st.sampled_from(["kept", "new", "second", "moved", "weight"]),
            "x": st.sampled_from(["new", "kept", "of the state", "result", "strided", "expanded"]),
            "weight": st.sampled_from(["kept", "kept", "moved", "state"]),
            "clutter": st.booleans(),
        }
    ),
    min_size=1,
    max_size=14,
)


class World:
    """The tensors of a caller. Two of them are driven alike: one of ours, one of eager's."""

    def __init__(self, device):
        self.device = device
        self.states = [torch.arange(16.0).reshape(4, 4).to(device), torch.ones(4, 4, device=device)]
        self.weight = torch.arange(16.0).reshape(4, 4).to(device) / 8
        self.x = torch.ones(4, 4, device=device)
        self.result = torch.ones(4, 4, device=device)
        self.clutter = []

    def inputs(self, call, serial):
        state = self._state(call["state"])
        if call["clutter"]:
            self.clutter.append(torch.empty(4, 4, device=self.device))
        if call["weight"] == "moved":
            self.weight = self.weight.clone()
        weight = state if call["weight"] == "state" else self.weight
        return state, self._x(call, state, serial), weight, call["n"]

    def _state(self, kind):
        if kind == "moved":
            self.states[0] = self.states[0].clone()
        if kind == "weight":
            return self.weight
        if kind == "new":
            return torch.full((4, 4), 2.0, device=self.device)
        return self.states[kind == "second"]

    def _x(self, call, state, serial):
        size = call["size"]
        if call["x"] == "kept":
            return self.x[:size]
        if call["x"] == "of the state":
            return state[4 - size :]
        if call["x"] == "result" and self.result.shape == (size, 4):
            return self.result
        new = torch.full((size, 4), float(serial), device=self.device)
        if call["x"] == "strided":
            return torch.stack([new, new], -1)[..., 0]
        return new[:1].expand(size, 4) if call["x"] == "expanded" else new


@pytest.mark.thorough
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(OPTIONS, CALLS)
def test_any_sequence_of_calls_does_what_eager_does(device, options, calls):
    run = compile_graph(traced(device), None, options, engine="npugraphs")
    ours, theirs = World(device), World(device)
    for serial, call in enumerate(calls):
        inputs, expected_inputs = ours.inputs(call, serial), theirs.inputs(call, serial)
        got, want = run(*inputs), attend(*expected_inputs)
        agree(
            [got, ours.states, ours.weight],
            [want, theirs.states, theirs.weight],
            inputs,
            expected_inputs,
        )
        # What a lent result holds after the next call is not eager's any more.
        own = run.captures.options.clone_output
        ours.result = got[0] if own else got[0].clone()
        theirs.result = want[0] if own else want[0].clone()
        del inputs, expected_inputs, got, want
        assert len(run.captures.graphs) <= run.captures.options.capture_limit
