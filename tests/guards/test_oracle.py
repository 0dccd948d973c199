"""torch's own guard manager as the oracle: ours never accepts a state that torch refuses."""

import contextlib
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from npugx_cache.conditions import Conditions
from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.evaluate import Scope
from npugx_cache.conditions.kinds import lines, live_state
from npugx_cache.entry.size_history import Known
from npugx_cache.trace import call, dynamo, tracing


def load_toy():
    if "guard_toy" in sys.modules:  # test_native imports this module by another name
        return sys.modules["guard_toy"]
    spec = importlib.util.spec_from_file_location("guard_toy", Path(__file__).parent / "toy.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["guard_toy"] = module
    spec.loader.exec_module(module)
    return module


toy = load_toy()


class Traced:
    """One traced call, with our guards and torch's on it."""

    def __init__(self):
        self.model, self.batch, self.caches = toy.make()
        self.base = {
            "self": self.model,
            "batch": self.batch,
            "caches": self.caches,
            "flag": True,
            "order": {"a": 1.0, "b": 2.0},
        }
        function = toy.Net.forward
        self.globals = function.__globals__
        with torch.no_grad():
            traced = call.trace(
                function,
                (self.model, self.batch, self.caches, True, {"a": 1.0, "b": 2.0}),
                {},
                Scope(self.base, self.globals),
                state=live_state(),
                dynamic=None,
                known=Known([], alone=True),
                decompositions=None,
                optimise=lambda graph: (),
            )
            assert isinstance(traced, call.Traced), traced
            # Traced once more, because torch's guards read globals that go with a trace of ours.
            arguments = (self.model, self.batch, self.caches, True, {"a": 1.0, "b": 2.0})
            self.kept = dynamo.run(
                function, arguments, {}, dynamic=None, known=Known([], alone=True)
            )
            self.theirs = tracing.guards_of(self.kept.output, function.__code__).check
        # Through the stored form: what is checked is what a restart would check.
        self.ours = Checker(Conditions.from_plain(traced.conditions.to_plain()))

    def verdicts(self, **changed):
        frame_locals = {**self.base, **changed}
        with torch.no_grad():
            scope = Scope(frame_locals, self.globals)
            return self.ours.holds(scope), self.theirs(frame_locals), self.ours.failures(scope)


@pytest.fixture(scope="module")
def traced():
    return Traced()


@contextlib.contextmanager
def patched(owner, name, value):
    old = owner[name] if isinstance(owner, dict) else getattr(owner, name)
    put = owner.__setitem__ if isinstance(owner, dict) else lambda n, v: setattr(owner, n, v)
    put(name, value)
    try:
        yield
    finally:
        put(name, old)


def test_both_accept_the_state_that_was_traced(traced):
    assert traced.verdicts() == (True, True, [])


def new_batch(x):
    return toy.Batch(x, torch.tensor([1, 3]))


LOCALS = {
    "another value of a flag": lambda t: {"flag": False},
    "an int for a bool": lambda t: {"flag": 1},
    "another shape": lambda t: {"batch": new_batch(torch.randn(3, 16))},
    "another dtype": lambda t: {"batch": new_batch(torch.randn(2, 16).double())},
    "another stride": lambda t: {"batch": new_batch(torch.randn(16, 2).t())},
    "a tensor that requires grad": lambda t: {
        "batch": new_batch(torch.randn(2, 16, requires_grad=True))
    },
    "a parameter for a tensor": lambda t: {
        "batch": new_batch(torch.nn.Parameter(torch.randn(2, 16), requires_grad=False))
    },
    "one cache twice": lambda t: {"caches": [t.caches[0], t.caches[0], t.caches[2]]},
    "one cache more": lambda t: {"caches": [*t.caches, t.caches[0].clone()]},
    "a tuple for a list": lambda t: {"caches": tuple(t.caches)},
    "a dict in another order": lambda t: {"order": {"b": 2.0, "a": 1.0}},
    "a dict with another value": lambda t: {"order": {"a": 1.0, "b": 3.0}},
    "a dict with another key": lambda t: {"order": {"a": 1.0, "c": 2.0}},
    "None for a tensor": lambda t: {"batch": new_batch(None)},
    "a meta tensor": lambda t: {"batch": new_batch(torch.randn(2, 16, device="meta"))},
}


@pytest.mark.parametrize("case", LOCALS)
def test_a_changed_argument_is_refused_by_both_with_a_reason(traced, case):
    ours, theirs, reasons = traced.verdicts(**LOCALS[case](traced))
    assert not ours
    assert not theirs
    assert reasons


STATES = {
    "a global constant": lambda t: patched(toy, "SCALE", 0.25),
    "a value in a global dict": lambda t: patched(toy.CFG, "mode", "b"),
    "a helper function": lambda t: patched(toy, "act", lambda x, a=2.0: x),
    "a default of a helper": lambda t: patched(toy.act, "__defaults__", (3.0,)),
    "a float attribute": lambda t: patched(t.model.layers[1], "gain", 2.0),
    "an enum attribute": lambda t: patched(t.model, "mode", toy.Mode.SLOW),
    "a class attribute": lambda t: patched(toy.Block, "limit", 4),
    "a forward patched on a submodule": lambda t: patched(
        t.model.layers[0], "forward", lambda *a: a[0]
    ),
    "a parameter's shape": lambda t: patched(
        t.model.head, "weight", torch.nn.Parameter(torch.randn(8, 16), requires_grad=False)
    ),
    "a parameter's requires_grad": lambda t: patched(t.model.head.weight, "requires_grad", True),
    "the class of a submodule": lambda t: patched(
        t.model.head, "__class__", type("Linear", (torch.nn.Linear,), {})
    ),
    "training mode": lambda t: patched(t.model.layers[2].drop, "training", True),
    "grad mode": lambda t: torch.enable_grad(),
    "autocast": lambda t: torch.autocast("cpu", dtype=torch.bfloat16),
    "default device": lambda t: torch.device("meta"),
}


@pytest.mark.parametrize("case", STATES)
def test_a_changed_state_is_refused_by_both_with_a_reason(traced, case):
    frame_locals, scope = traced.base, Scope(traced.base, traced.globals)
    with torch.no_grad(), STATES[case](traced):
        assert not traced.ours.holds(scope)
        assert not traced.theirs(frame_locals)
        assert traced.ours.failures(scope)
    if case == "a forward patched on a submodule":
        del traced.model.layers[0].forward
    assert traced.verdicts()[0]


def test_what_torch_overlooks_ours_refuses(traced):
    """torch does not look at hooks of submodules, nor tell 0.0 from -0.0."""
    handle = traced.model.layers[0].register_forward_hook(lambda *a: None)
    assert traced.verdicts()[:2] == (False, True)
    handle.remove()
    assert traced.verdicts()[0]


def test_new_weights_of_the_same_kind_are_accepted_by_both(traced):
    new = torch.nn.Parameter(torch.randn(7, 16), requires_grad=False)
    with patched(traced.model.head, "weight", new):
        assert traced.verdicts()[:2] == (True, True)


def test_guards_print_as_python():
    import ast

    printed = list(lines(Traced().ours.conditions, code=False))
    assert any("SCALE" in line for line in printed)
    parsable = 0
    for line in printed:
        with contextlib.suppress(SyntaxError):
            ast.parse(line, mode="eval")
            parsable += 1
    assert parsable > len(printed) * 0.6


@pytest.mark.parametrize("state", STATES)
def test_the_cheaper_check_of_later_calls_never_accepts_what_the_full_check_refuses(traced, state):
    """Every pair of a changed state and a changed argument, and each of them alone."""
    assert traced.verdicts()[0]
    assert traced.verdicts()[0]  # from the second acceptance on, the cheaper check is there
    assert traced.ours._native is not None
    nothing = {"nothing": lambda _: {}}
    with torch.no_grad(), STATES[state](traced):
        for change in (nothing | LOCALS).values():
            scope = Scope({**traced.base, **change(traced)}, traced.globals)
            full = Checker(traced.ours.conditions).holds(scope)
            assert traced.ours.holds_quickly(scope) <= full
            assert traced.ours.holds(scope) == full
    traced.model.layers[0].__dict__.pop("forward", None)
    for change in LOCALS.values():
        scope = Scope({**traced.base, **change(traced)}, traced.globals)
        with torch.no_grad():
            assert traced.ours.holds(scope) == Checker(traced.ours.conditions).holds(scope)
