"""The module of an exported program, from the cache: its arguments, its checks and its buffers."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from npugx_cache.pieces.compiled import cached_graph, counters

sys.path.insert(0, str(Path(__file__).parent))
from of_this_torch import exports_sizes

SCRIPT = Path(__file__).with_name("run_exported.py")
WAYS = {
    "guards": lambda program: program.module(),
    "no_guards": lambda program: program.module(check_guards=False),
    "decomposed": lambda program: program.run_decompositions().module(),
}
TREESPEC = "ignore:.isinstance:FutureWarning"


class Counting(nn.Module):
    """Nested arguments and results, a parameter, and buffers that a call writes to."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(2), persistent=False)

    def forward(self, x, *, others, flag=True):
        self.calls.add_(1)
        self.last.copy_(others["pair"][1])
        y = self.inner(x) + others["pair"][0]
        return {"y": y if flag else -y, "more": (x * self.calls, self.last.sum())}


def arguments(size=3):
    others = {"pair": [torch.randn(size, 4), torch.randn(2)]}
    return (torch.randn(size, 4),), {"others": others, "flag": False}


@pytest.fixture
def exported(tmp_path, monkeypatch):
    """Export with sizes that are numbers, or with a dynamic one up to 100."""
    monkeypatch.setenv("NPUGX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    torch._dynamo.reset()

    def export(dynamic):
        torch.manual_seed(0)
        args, kwargs = arguments()
        size = torch.export.Dim("size", max=100)
        shapes = {"x": {0: size}, "others": {"pair": [{0: size}, None]}, "flag": None}
        return torch.export.export(
            Counting().eval(), args, kwargs, dynamic_shapes=shapes if dynamic else None
        )

    return export


@pytest.mark.filterwarnings(TREESPEC)
@pytest.mark.parametrize(
    "dynamic",
    [
        pytest.param(False, id="numbers", marks=pytest.mark.thorough),
        pytest.param(True, id="dynamic"),
    ],
)
def test_a_module_is_called_as_before_cold_and_restored(exported, dynamic):
    program = exported(dynamic)
    for way, modules_of in WAYS.items():
        for is_stored in (False, True):
            module, expected = modules_of(program), copy.deepcopy(modules_of(program))
            before = counters.info(0)
            with torch.no_grad():
                run = cached_graph(module, program.example_inputs)
                assert run.entry is not None, way
                for size in (3, 7, 3) if dynamic else (3, 3):
                    args, kwargs = arguments(size)
                    torch.testing.assert_close(
                        run(*args, **kwargs), expected(*args, **kwargs), rtol=0, atol=0
                    )
            after = counters.info(0)
            # The graph with guards and the one without are one entry.
            is_known = is_stored or way == "no_guards"
            assert (after.hits - before.hits, after.misses - before.misses) == (
                (1, 0) if is_known else (0, 1)
            )
            assert module.calls is not expected.calls
            torch.testing.assert_close(module.calls, expected.calls)  # the module's own buffers
            torch.testing.assert_close(module.last, expected.last)


@pytest.mark.filterwarnings(TREESPEC)
@pytest.mark.parametrize("way", ["guards", "no_guards"])
def test_the_checks_of_the_program_are_made_at_each_call(exported, way):
    program = exported(dynamic=True)
    with torch.no_grad():
        run = cached_graph(WAYS[way](program), program.example_inputs)
        args, kwargs = arguments(101)
        with pytest.raises((RuntimeError, AssertionError), match=r"100|[Gg]uard"):
            run(*args, **kwargs)
        with pytest.raises(ValueError, match="spec"):
            run(*args, others={"pair": [torch.randn(3, 4)]}, flag=False)


@pytest.mark.filterwarnings(TREESPEC)
def test_a_program_whose_sizes_are_not_checked_enough_runs_as_it_is(exported, caplog):
    def asks(module, inputs, settings):
        for node in module.graph.find_nodes(op="placeholder"):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.dim() == 2:
                bool(value.shape[0] % 2 == 0)

    program = exported(dynamic=True)
    options = {"post_grad_custom_pre_pass": asks}
    with torch.no_grad():
        run = cached_graph(program.module(), program.example_inputs, options=options)
        assert run.entry is None
        assert "demands more of its sizes than the program checks" in caplog.text
        args, kwargs = arguments(4)
        expected = program.module()(*args, **kwargs)
        torch.testing.assert_close(run(*args, **kwargs)["y"], expected["y"])


@pytest.mark.filterwarnings(TREESPEC)
def test_what_the_program_checks_of_its_sizes_may_be_relied_on(exported):
    def asks(module, inputs, settings):
        for node in module.graph.find_nodes(op="placeholder"):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.dim() == 2:
                bool(value.shape[0] <= 100)

    program = exported(dynamic=True)
    options = {"post_grad_custom_pre_pass": asks}
    with torch.no_grad():
        run = cached_graph(program.module(), program.example_inputs, options=options)
    assert run.entry is not None


@pytest.mark.filterwarnings(TREESPEC)
def test_examples_of_another_kind_are_not_compiled_for(exported, caplog):
    program = exported(dynamic=True)
    args, kwargs = copy.deepcopy(program.example_inputs)
    run = cached_graph(program.module(), ((args[0].double(),), kwargs))
    assert run.entry is None
    assert "input 0 is another than the one that was exported" in caplog.text


@pytest.mark.thorough
@exports_sizes
def test_qwen3_is_exported_and_restored(surroundings):
    cold = surroundings.run(SCRIPT, PYTHONHASHSEED="1")
    assert cold == {"difference": 0.0, "info": [0, 1, 0, 1], "warnings": []}
    warm = surroundings.run(SCRIPT, PYTHONHASHSEED="2")
    assert warm == {"difference": 0.0, "info": [1, 0, 0, 0], "warnings": []}
