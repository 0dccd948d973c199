"""Every option of the table with another value than its default, and those that are none here."""

from __future__ import annotations

from typing import Any, NamedTuple


class Flip(NamedTuple):
    """captured: whether graphs are captured with it, on a backend and device that capture."""

    name: str
    options: dict[str, Any]
    backend: str = "npugraph_ex"
    captured: bool = True


def leave(graph_module: Any, example_inputs: Any, config: Any) -> None:
    """A custom pass that leaves the graph as it is."""


PASSES: dict[str, Any] = {
    "default": {},
    "remove_noop_ops": {"remove_noop_ops": False},
    "remove_dead_ops": {"remove_dead_ops": False},
    "remove_cat_ops": {"remove_cat_ops": False},
    "inplace_pass": {"inplace_pass": False},
    "input_inplace_pass": {"input_inplace_pass": False},
    "pattern_fusion_pass": {"pattern_fusion_pass": False},
    "post_grad_custom_pre_pass": {"post_grad_custom_pre_pass": leave},
    "post_grad_custom_post_pass": {"post_grad_custom_post_pass": leave},
    "record_statistics_debug_info": {"record_statistics_debug_info": True},
}
REPLAY: dict[str, Any] = {
    "capture_limit": {"capture_limit": 2},
    "clone_input": {"clone_input": False},
    "clone_output": {"clone_output": False},
    "frozen_parameter": {"frozen_parameter": True},
    "force_recapture": {"force_recapture": True},
    "unsafe_skip_npugraph_capture_validation": {"unsafe_skip_npugraph_capture_validation": True},
}
UNCAPTURED: dict[str, Any] = {
    "force_eager": {"force_eager": True},
    "dump_tensor_data": {"dump_tensor_data": True},
    "data_dump_stage": {"dump_tensor_data": True, "data_dump_stage": "original"},
}
NPU: dict[str, Any] = {
    "capture_error_mode": {"capture_error_mode": "relaxed"},
    "reuse_graph_pool_in_same_fx": {"reuse_graph_pool_in_same_fx": False},
    "deadlock_check": {"deadlock_check": True},
    "use_graph_pool": {},
}
STATIC: dict[str, Any] = {
    "static_kernel_compile": {},
    "disable_static_kernel_compile_cache": {"disable_static_kernel_compile_cache": True},
    "_vllm_aclnn_static_kernel_sym_index": {"_vllm_aclnn_static_kernel_sym_index": 1},
    "_vllm_aclnn_static_kernel_sym_range": {"_vllm_aclnn_static_kernel_sym_range": [1, 8]},
}
"""What they change is shown by test_static_kernels.py."""

MERGED: dict[str, Any] = {
    "super_kernel_optimize": {"super_kernel_optimize": True},
    "super_kernel_optimize_options": {"super_kernel_optimize_options": {"split_mode": 1}},
    "super_kernel_debug_options": {"super_kernel_debug_options": {"debug_sync_all": 1}},
}
"""CANN's library for it is not simulated: it refuses, so nothing is captured."""

ELSEWHERE = {"data_dump_dir": "part of every dump"}


def flips(device: str, folder: str) -> list[Flip]:
    """`folder` is where dumps go. A CPU captures with the backend that does nothing else."""
    replaying = "npugraphs" if device == "cpu" else "npugraph_ex"
    made = [Flip(name, options) for name, options in PASSES.items()]
    made += [Flip(name, options, replaying) for name, options in REPLAY.items()]
    for name, options in UNCAPTURED.items():
        where = {"data_dump_dir": folder} if "dump_tensor_data" in options else {}
        made.append(Flip(name, {**options, **where}, captured=False))
    if device == "npu":
        made += [Flip(name, {**options, **_pool(name)}) for name, options in NPU.items()]
        made += [_static(name, options) for name, options in STATIC.items()]
        merge = {"super_kernel_optimize": True}
        made += [Flip(n, {**merge, **o}, captured=False) for n, o in MERGED.items()]
    return made


def _static(name: str, options: dict[str, Any]) -> Flip:
    eager = name.startswith("_vllm")
    given = {"static_kernel_compile": True, "force_eager": eager, **options}
    return Flip(name, given, captured=not eager)


def _pool(name: str) -> dict[str, Any]:
    if name != "use_graph_pool":
        return {}
    import torch

    return {"use_graph_pool": vars(torch)["npu"].graph_pool_handle()}
