"""Writes the graph before and after each pass to readable files, if TORCH_COMPILE_DEBUG=1.

The files lie in torch's debug folder: torch_compile_debug/run_<time>/npugx_cache/model__<n>/.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from npugx_cache import config
from npugx_cache.backend import lowering
from npugx_cache.events import logger

if TYPE_CHECKING:
    from torch import fx

_models = itertools.count()


def _rank() -> int | None:
    """The rank of this process; None if `torch.distributed` is not initialised."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank()


class GraphFiles:
    """The debug folder of one graph. Writes nothing unless TORCH_COMPILE_DEBUG=1."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._count = itertools.count()
        if config.wants_graphs():
            rank = _rank()
            name = f"model__{next(_models)}" + (f"_rank_{rank}" if rank is not None else "")
            self._folder = Path(lowering.debug_folder()) / "npugx_cache" / name

    def write(self, graph_module: fx.GraphModule, label: str) -> None:
        if self._folder is None:
            return
        path = self._folder / f"{next(self._count):03}_aot_forward_graph{label}.txt"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            graph_module.recompile()
            path.write_text(graph_module.print_readable(print_output=False) + os.linesep)
        except OSError as error:  # a full disk must not end a compile
            logger.warning("%s not written: %s", path, error)
