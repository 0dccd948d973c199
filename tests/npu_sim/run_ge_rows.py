"""Rows of the matrix with the backend `ge`: `run_rows.py` of tests/soundness, on the simulated NPU.

python run_ge_rows.py FOLDER PHASE ROW ...
"""

import functools
import sys
from pathlib import Path

import graph_engine
import npu_sim

import npugx_cache

sys.path.insert(0, str(Path(__file__).parents[1] / "soundness"))

import run_rows

npu_sim.install()
graph_engine.install()
npugx_cache.cache_compile = functools.partial(npugx_cache.cache_compile, backend="ge")

if __name__ == "__main__":
    run_rows.main(*sys.argv[1:])
