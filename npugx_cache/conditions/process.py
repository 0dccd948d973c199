"""Questions about the process whose answers are constants in a graph: rank, accelerator, ...

Dynamo asks such a question once during a trace and installs no guard for the answer. We record the
answer and ask again before the graph runs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.portable import Plain, encode
from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Callable


def answer(name: str) -> object:
    """The answer now; KeyError for a question that this version does not know."""
    return ANSWERS[name]()


def _has_process_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _rank() -> int | None:
    return torch.distributed.get_rank() if _has_process_group() else None


def _world_size() -> int | None:
    return torch.distributed.get_world_size() if _has_process_group() else None


def _available() -> tuple[bool, ...]:
    return torch.accelerator.is_available(), torch.cuda.is_available(), torch.xpu.is_available()


def _current_device() -> tuple[str, int | None]:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return "none", None
    return accelerator.type, torch.accelerator.current_device_index()


def _device_modules() -> list[Any]:
    """The modules about devices, such as `torch.cuda`; also that of an accelerator from outside."""
    modules = [torch.cuda, vars(torch)["xpu"]]
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None:
        modules.append(torch.get_device_module(accelerator))
    return modules


def _initialised_modules() -> tuple[bool, ...]:
    return _has_process_group(), *(bool(each.is_initialized()) for each in _device_modules())


def _autocast_dtypes() -> str:
    return " ".join(str(torch.get_autocast_dtype(kind)) for kind in runtime.AUTOCAST_DEVICES)


def _device_counts() -> tuple[int, ...]:
    return tuple(each.device_count() for each in _device_modules())


def _device_properties() -> str:
    return repr(
        [
            each.get_device_properties(index)
            for each in _device_modules()
            if hasattr(each, "get_device_properties")
            for index in range(each.device_count())
        ]
    )


def _processor() -> Plain:
    return sorted(torch.cpu.get_capabilities().items())


_ABOUT_PROCESSOR = (
    "get_capabilities",
    *(name for name in vars(torch.cpu) if name.startswith("_is_") and name.endswith("_supported")),
)

ANSWERS: dict[str, Callable[[], object]] = {
    "get_rank": _rank,
    "get_world_size": _world_size,
    "is_initialized": _initialised_modules,
    "is_available": _available,
    "current_accelerator": _current_device,
    "current_device": _current_device,
    "current_device_index": _current_device,
    "get_device_properties": _device_properties,
    # Between two calls, torch compares these only while autocast is on (`runtime.SameState`).
    **dict.fromkeys(runtime.AUTOCAST_DTYPES, _autocast_dtypes),
    "getrecursionlimit": sys.getrecursionlimit,
    "is_in_onnx_export": runtime.is_in_onnx_export,
    "get_overwrite_module_params_on_conversion": (
        torch.__future__.get_overwrite_module_params_on_conversion
    ),
    "get_device_capability": _device_properties,
    "device_count": _device_counts,
    **dict.fromkeys(_ABOUT_PROCESSOR, _processor),
    **runtime.ONEDNN_RUNS,
}
"""The questions by the name under which traced code asks them.

`ONEDNN_RUNS` holds questions that no code asks: operators in the graph depend on their answers.
"""


def encode_answer(name: str) -> Plain:
    return encode(answer(name))
