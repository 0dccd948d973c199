"""A package that was compiled elsewhere and shipped without sources, as frozen programs are.

The names of files in its code are then not those of its modules' `__file__`.
"""

from __future__ import annotations

import compileall
import shutil
import textwrap
from pathlib import Path

import pytest

CALLS = 6
PACKAGE = Path(__file__).parents[2] / "npugx_cache"
SCRIPT = f"""
    import json, logging, torch, npugx_cache
    from npugx_cache import cache_compile

    @cache_compile(dynamic=False)
    def f(x):
        return torch.zeros(3, device=x.device) + x * 2

    faults = []
    logging.getLogger("npugx_cache").addHandler(logging.Handler())
    logging.getLogger("npugx_cache").handlers[0].emit = faults.append
    x = torch.ones(3)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:  # what is handled already is not what a call raises
        right = [torch.equal(f(x), x * 2) for _ in range({CALLS})]
    told = [text for refusal in f.explain() for text in refusal.reasons]
    traces = sum(record.exc_info is not None for record in faults)
    print(json.dumps([npugx_cache.__file__, all(right), f.cache_info()[:4], told, traces]))
"""


@pytest.fixture
def shipped(tmp_path):
    """The folder of a package without sources, whose code names files that are not there."""
    made = tmp_path / "site/npugx_cache"
    shutil.copytree(PACKAGE, made, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(made, quiet=2, legacy=True, stripdir=tmp_path / "site")
    for source in made.rglob("*.py"):
        source.unlink()
    return made


@pytest.fixture
def run(shipped, surroundings, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(SCRIPT))

    def running():
        place, *found = surroundings.run(program, PYTHONPATH=str(shipped.parent))
        assert place == str(shipped / "__init__.pyc")
        return found

    return running


@pytest.mark.thorough
def test_a_graph_is_stored_and_is_a_hit_at_the_second_start(run):
    right, counts, *_ = run()
    assert (right, counts) == (True, [0, 1, 0, 1])
    right, counts, *_ = run()
    assert (right, counts) == (True, [1, 0, 0, 0])


@pytest.mark.thorough
def test_a_part_that_is_missing_costs_the_cache_three_traces_and_no_call(run, shipped):
    (shipped / "backend/engines/npugraph_ex.pyc").unlink()
    right, counts, (told,), traces = run()
    assert (right, counts) == (True, [0, 0, CALLS, 0])
    assert told == "a fault of the cache: ModuleNotFoundError, see the log"
    assert traces == 3
