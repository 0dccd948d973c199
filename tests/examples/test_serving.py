"""The server of `examples/serve_decode.py` is killed under load, and serves again from the store.

`benchmarks/serving.py` starts, kills and asks it, and counts what came of each request.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]

BENCHMARK = REPOSITORY / "benchmarks/serving.py"


@pytest.fixture(scope="module")
def ways(once):
    def make(surroundings):
        numbers = surroundings.folder / "numbers.json"
        command = [sys.executable, BENCHMARK, "--quick", "--json", numbers]
        done = subprocess.run(
            command, env=surroundings.environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(numbers.read_text())

    return once("serving", make)


@pytest.mark.parametrize("way", ["the cache", "no cache, compiled", "eager"])
def test_a_kill_costs_only_the_requests_that_are_being_answered(ways, way):
    found = ways[way]
    assert found["lost"] == 0
    assert found["cut"] <= 3  # clients, each with one request
    assert found["answered"] >= 10


@pytest.mark.parametrize("way", ["the cache", "no cache, compiled", "eager"])
def test_a_prompt_has_the_same_answer_before_and_after(ways, way):
    assert ways[way]["texts_of_a_prompt"] == 1


def test_a_restarted_server_is_warm_without_a_compile(ways):
    assert ways["the cache"]["compiled"] == 0
    assert ways["no cache, compiled"]["compiled"] == 2
