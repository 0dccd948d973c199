"""Runs libraries that Inductor made ahead of time, and names Inductor's settings.

Nothing here imports Inductor, so a restored call may use this module.
"""

from __future__ import annotations

import dis
import functools
import importlib.machinery
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from npugx_cache.private.runtime import changed_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MODULE = "torch._inductor.config"
_WITHOUT_EFFECT = frozenset({"aot_inductor.metadata"})  # written by Inductor itself


def open_library(path: str) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    """Load a library, which runs some of its code, and return its function.

    The function may be called from several threads, and keeps the library loaded. Raises
    RuntimeError.
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

    We read the names from the code of `torch._inductor.config` without running that code, so some
    of them are no settings, but names that the module imports.
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


def changed_inductor_settings() -> tuple[tuple[str, object], ...]:
    """Inductor's settings that differ from their defaults, if its settings are loaded at all."""
    return changed_settings(_MODULE, _WITHOUT_EFFECT)
