"""Private torch names for running Inductor's libraries, and for its settings by name.

The hit path may use this: nothing here imports Inductor. Checked on torch 2.13.
"""

from __future__ import annotations

import dis
import functools
import importlib.machinery
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from npugx_cache.private.runtime import changed_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MODULE = "torch._inductor.config"
_WITHOUT_EFFECT = frozenset({"aot_inductor.metadata"})  # Inductor itself writes to it


def open_library(path: str) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    """Load a library that Inductor made ahead of time; this runs code of it. Raises RuntimeError.

    What it returns is safe to call from several threads and keeps the library loaded.
    """
    extension: Any = getattr(torch._C, "_aoti", None)
    runner = getattr(extension, "AOTIModelContainerRunnerCpu", None)
    if runner is None:
        raise RuntimeError(f"torch {torch.__version__} can't run ahead-of-time libraries")
    run: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]] = runner(path, 1).run
    return run


@functools.cache
def setting_names() -> frozenset[str]:
    """The names that Inductor's settings may have, as "name" and "section.name".

    Read from the compiled module without running it; some are not settings but what it imports.
    """
    folder = str(Path(str(torch.__file__)).parent / "_inductor")
    spec = importlib.machinery.PathFinder.find_spec(_MODULE, [folder])
    loader: Any = spec.loader if spec else None
    code = loader.get_code(_MODULE) if loader else None
    return frozenset(_assigned(code, "")) if code else frozenset()


def _assigned(code: types.CodeType, prefix: str) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_NAME" and not instruction.argval.startswith("__"):
            yield prefix + instruction.argval
    for constant in code.co_consts:
        if _is_class_body(constant) and constant.co_name in code.co_names:
            yield from _assigned(constant, f"{prefix}{constant.co_name}.")


def _is_class_body(constant: object) -> TypeGuard[types.CodeType]:
    return isinstance(constant, types.CodeType) and "__qualname__" in constant.co_names


def changed_inductor_settings() -> tuple[tuple[str, str], ...]:
    """Inductor's settings that somebody has changed; nothing while Inductor is not loaded."""
    module: Any = sys.modules.get(_MODULE)
    return () if module is None else changed_settings(module, _WITHOUT_EFFECT)
