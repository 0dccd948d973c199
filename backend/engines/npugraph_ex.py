"""The default engine: our passes optimise the aten graph, which then runs as generated Python."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from npugx_cache.backend.engines import Engine
from npugx_cache.backend.passes.cat import remove_cats
from npugx_cache.backend.passes.copies import remove_copies, remove_self_copies
from npugx_cache.backend.passes.copy_back import recover_view_inplace, reinplace_inputs
from npugx_cache.backend.passes.custom import custom_pass, dump_results
from npugx_cache.backend.passes.dead_code import remove_dead_code
from npugx_cache.backend.passes.equal_calls import merge_equal_calls
from npugx_cache.backend.passes.functional_calls import (
    decompose_auto_functionalized,
    decompose_functional_variants,
)
from npugx_cache.backend.passes.linear import restore_linear
from npugx_cache.backend.passes.noop import remove_noops
from npugx_cache.backend.passes.npu.matmuls import fuse_matmuls
from npugx_cache.backend.passes.npu.norms import fuse_norms
from npugx_cache.backend.passes.pattern_fusion import fuse_patterns
from npugx_cache.backend.passes.reinplace import reinplace
from npugx_cache.backend.passes.workspaces import give_workspaces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npugx_cache.backend.options import Options
    from npugx_cache.backend.passes import Pass


def _passes(options: Options, distinct_inputs: bool) -> Iterator[tuple[str, Pass]]:
    """The passes in the order in which they run.

    Decompositions add copies. The passes that drop copies run after the decompositions, and before
    those that make calls write in place.
    """
    if options.dump_tensor_data and options.data_dump_stage == "original":
        yield "dump_tensor_data", partial(dump_results, folder=options.data_dump_dir)
        return
    yield from _optimising(options, distinct_inputs)
    if options.dump_tensor_data:
        yield "dump_tensor_data", partial(dump_results, folder=options.data_dump_dir)


def _optimising(options: Options, distinct_inputs: bool) -> Iterator[tuple[str, Pass]]:
    yield from _custom(options, "post_grad_custom_pre_pass")
    copies = partial(remove_copies, distinct_inputs=distinct_inputs)
    yield "decompose_auto_functionalized", decompose_auto_functionalized
    if options.inplace_pass:
        yield "decompose_functional_variants", decompose_functional_variants
    if options.remove_noop_ops:
        yield "remove_noop_ops", remove_noops
        yield "remove_copies", copies
    yield "recover_view_inplace", partial(recover_view_inplace, distinct_inputs=distinct_inputs)
    if options.pattern_fusion_pass:
        yield "pattern_fusion_pass", fuse_patterns
        yield "npu_fusions", lambda graph: fuse_norms(graph) + fuse_matmuls(graph)
    yield from _custom(options, "post_grad_custom_post_pass")
    if options.remove_cat_ops:
        yield "remove_cat_ops", remove_cats
    yield "restore_linear", restore_linear
    yield "merge_equal_calls", merge_equal_calls
    if options.remove_dead_ops:
        yield "remove_dead_ops", remove_dead_code
    if options.inplace_pass:
        yield "inplace_pass", reinplace
    if options.input_inplace_pass:
        yield "input_inplace_pass", partial(reinplace_inputs, distinct_inputs=distinct_inputs)
    yield "remove_self_copies", remove_self_copies
    yield "workspaces", give_workspaces


def _custom(options: Options, wanted: str) -> Iterator[tuple[str, Pass]]:
    for name, function in options.functions():
        if name == wanted:
            yield name, custom_pass(name, function, options)


ENGINES = {"npugraph_ex": Engine(passes=_passes)}
