"""Every pass, and all of them in a row, against the program it was given: random graphs."""

from __future__ import annotations

import copy
import sys
from functools import partial
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from random_graphs import FUNCTIONALISED, OVERLAPS, PROGRAMS, check, traced

from npugx_cache.backend import engines, options
from npugx_cache.backend.passes.cat import remove_cats
from npugx_cache.backend.passes.copies import remove_copies, remove_self_copies
from npugx_cache.backend.passes.copy_back import recover_view_inplace, reinplace_inputs
from npugx_cache.backend.passes.dead_code import remove_dead_code
from npugx_cache.backend.passes.equal_calls import merge_equal_calls
from npugx_cache.backend.passes.linear import restore_linear
from npugx_cache.backend.passes.noop import remove_noops
from npugx_cache.backend.passes.reinplace import reinplace
from npugx_cache.backend.passes.view_to_reshape import views_to_reshapes

pytestmark = pytest.mark.thorough

PASSES = [
    remove_noops,
    remove_dead_code,
    remove_copies,
    reinplace,
    reinplace_inputs,
    recover_view_inplace,
    remove_self_copies,
    remove_cats,
    restore_linear,
    partial(merge_equal_calls, share=1000),  # the inputs of these programs are small
    views_to_reshapes,
]
WITH_DISTINCT_INPUTS = [remove_copies, reinplace_inputs, recover_view_inplace]


@settings(max_examples=120)
@given(program=PROGRAMS, overlap=OVERLAPS, symbolic=st.booleans())
def test_passes_keep_results_writes_layout_and_aliasing(program, overlap, symbolic):
    graph = traced(program, symbolic=symbolic)
    for run in PASSES:
        rewritten = copy.deepcopy(graph)
        run(rewritten.graph)
        check(rewritten, program, overlap)
    engines.load("npugraph_ex").optimise(graph, options.Options())
    check(graph, program, overlap)


@settings(max_examples=120)
@given(program=FUNCTIONALISED, symbolic=st.booleans())
def test_passes_keep_a_functionalised_graph_right(program, symbolic):
    graph = traced(program, symbolic=symbolic)
    for run in WITH_DISTINCT_INPUTS:
        rewritten = copy.deepcopy(graph)
        run(rewritten.graph, distinct_inputs=True)
        check(rewritten, program)
    engines.load("npugraph_ex").optimise(graph, options.Options(), distinct_inputs=True)
    check(graph, program)
