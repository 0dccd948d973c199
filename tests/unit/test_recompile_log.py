"""`TORCH_LOGS=recompiles` shows our compiles in torch's own words."""

import logging

import pytest
import torch

from npugx_cache import cache_compile


def scale(x):
    return x * 3


@pytest.fixture
def told(tmp_path):
    """The lines that calls write to torch's log of an artifact, if these are switched on."""
    found = []

    class Keeper(logging.Handler):
        def emit(self, record):
            found.append((record.name, record.getMessage()))

    torch_log, keeper = logging.getLogger("torch._dynamo"), Keeper()
    torch_log.addHandler(keeper)

    def calling(*sizes, **artifacts):
        torch._logging.set_logs(**artifacts)
        cached = cache_compile(scale, cache_dir=tmp_path)
        for size in sizes:
            cached(torch.ones(size))
        return [(name, text) for name, text in found if "Recompiling function" in text]

    yield calling
    torch_log.removeHandler(keeper)
    torch._logging.set_logs()


def test_another_graph_of_a_function_is_a_recompile(told):
    [(name, text)] = told(3, 4, recompiles=True)
    assert name == "torch._dynamo.guards.__recompiles"
    first, second, third = text.splitlines()
    code = scale.__code__
    assert first == f"Recompiling function scale in {__file__}:{code.co_firstlineno}"
    assert second == "    triggered by the following guard failure(s):"
    assert third.startswith("    - ")
    assert ": x: size was (3,), is (4,)" in third
    # A function that has no graph in its process is compiled, or restored, for the first time.
    assert len(told(3, 4, recompiles=True)) == 1
    assert len(told(5, recompiles=True)) == 1


def test_torch_is_told_only_if_it_asks(told):
    assert told(3, 4) == []
