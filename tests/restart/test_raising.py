"""A call that the function itself can't run keeps no other call from the cache."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

WORKER = Path(__file__).with_name("raising.py")
WRONG = {
    "an operator": ([2, 3], "RuntimeError"),
    "a raise": ([9, 4], "ValueError"),
    "an assert": ([5, 4], "AssertionError"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_call_that_raises_is_noted_nowhere(surroundings, name):
    wrong, error = WRONG[name]
    first = surroundings.run(WORKER, json.dumps([wrong, wrong]))
    assert first["reasons"] == [f"the function itself raised {error} for such a call"]
    assert (first["bypasses"], first["stored"], first["entries"]) == (2, 0, 0)
    cold = surroundings.run(WORKER, json.dumps([wrong, [2, 4]]))
    assert (cold["misses"], cold["stored"]) == (1, 1)
    warm = surroundings.run(WORKER, json.dumps([[2, 4], wrong, wrong, wrong, wrong, wrong]))
    assert (warm["hits"], warm["misses"], warm["bypasses"]) == (1, 0, 5)
    for worker in (first, cold, warm):
        for cached, eager in worker["answers"]:
            assert cached == eager
        assert any(str(cached).startswith(error) for cached, _ in worker["answers"])


def test_torch_logs_no_error_of_its_own_for_a_wrong_call(surroundings):
    worker = surroundings.start(WORKER, json.dumps([[2, 3]]))
    worker.result()
    assert "fake_tensor" not in worker.stderr


def test_wrong_calls_do_not_count_as_recompiles(surroundings):
    calls = [[2, n] for n in range(5, 15)]
    info = surroundings.run(WORKER, json.dumps([*calls, [2, 4]]), NPUGX_CACHE_RECOMPILE_LIMIT="2")
    assert (info["bypasses"], info["misses"], info["stored"]) == (10, 1, 1)
