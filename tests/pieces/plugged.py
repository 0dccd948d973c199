"""Loads the plugins of an engine as the engine does, and prints what came of it.

python plugged.py vllm|sglang|inert. Our entry points are those of a folder on the path.
"""

from __future__ import annotations

import json
import logging
import sys
import types

MESSAGES = []


def heard(record):
    MESSAGES.append(f"{record.levelname} {record.getMessage()}")


def in_vllm():
    import vllm.plugins
    from vllm import envs
    from vllm.platforms import current_platform

    for _ in range(2):  # vLLM may load them again
        vllm.plugins.plugins_loaded = False
        vllm.plugins.load_general_plugins()
    from vllm.config import CompilationConfig

    return {
        "compiler": current_platform.get_compile_backend(),
        "backends": [CompilationConfig(backend=name).backend for name in ("", "inductor")],
        "mega": envs.VLLM_USE_MEGA_AOT_ARTIFACT,
    }


def in_sglang():
    # A kernel for GPUs and NPUs alone, without which the backend of sglang can not be loaded.
    kernels = "sglang.srt.model_executor.runner_backend_utils.weak_ref_tensor"
    sys.modules[kernels] = types.ModuleType(kernels)
    sys.modules[kernels].weak_ref_tensors = None
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.compilation import backend
    from sglang.srt.compilation.compilation_config import CompilationConfig

    managers = [
        backend.CompilerManager(CompilationConfig([1], compiler))
        for compiler in ("eager", "inductor")
    ]
    return {"compilers": [type(each.compiler).__name__ for each in managers]}


def inert():
    from importlib.metadata import entry_points

    before = set(sys.modules)
    for group in ("vllm.platform_plugins", "vllm.general_plugins", "sglang.srt.plugins"):
        (ours,) = (each for each in entry_points(group=group) if each.name == "npugx_cache")
        ours.load()()
    loaded = {name for name in set(sys.modules) - before if name.startswith("npugx_cache")}
    heavy = {"torch", "vllm", "sglang", "msgpack", "click", "logging.config"} & set(sys.modules)
    return {"ours": sorted(loaded), "heavy": sorted(heavy)}


if __name__ == "__main__":
    handler = logging.Handler(logging.INFO)
    handler.emit = heard
    logger = logging.getLogger("npugx_cache")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    found = {"vllm": in_vllm, "sglang": in_sglang, "inert": inert}[sys.argv[1]]()
    print(json.dumps({**found, "messages": MESSAGES}))
