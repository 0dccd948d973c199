"""A pytest plugin: vllm-ascend's platform compiles with `NpugxCompiler` while its own tests run.

Importing this module makes the platform known to vLLM, as an installed vllm-ascend does.
"""

from __future__ import annotations

import importlib.metadata

import torch

# Torchvision's wheel is for CUDA. Beside a torch for CPUs its library does not load, and its Python
# code asks for two operators of the library; vllm-ascend imports the code, and calls neither.
_OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

_usual = importlib.metadata.entry_points


def _with_the_platform(**selected):
    found = _usual(**selected)
    if selected.get("group") != "vllm.platform_plugins":
        return found
    row = importlib.metadata.EntryPoint("ascend", "vllm_ascend:register", selected["group"])
    return importlib.metadata.EntryPoints([*found, row])


importlib.metadata.entry_points = _with_the_platform


def pytest_collection_finish(session):
    from vllm.platforms import current_platform

    from npugx_cache.integrations import plugins

    plugins.wire_vllm()
    found = type(current_platform).__name__, current_platform.get_compile_backend()
    assert found == ("NPUPlatform", plugins.COMPILER), found
