"""Operators of the namespace `npugx_cache`: what a stored program may call besides torch's own.

Made with `torch.library.Library`, which loads no compiler. Importing this registers them.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import fx

from npugx_cache.events import logger

NAMESPACE = "npugx_cache"

_library: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
_library.define("dump(Tensor value, str node, str folder) -> ()")

_counts: defaultdict[tuple[str, str], Any] = defaultdict(itertools.count)


@torch.library.impl(_library, "dump", "CompositeExplicitAutograd")
def _dump(value: torch.Tensor, node: str, folder: str) -> None:
    """Write a tensor to <folder>/worldsize<W>_global_rank<R>/<node>_device_<d>_<n>.pt."""
    if value.device.type == "meta":
        return
    place = Path(folder) / _rank_folder()
    count = next(_counts[folder, node])
    path = place / f"{node}_device_{value.device.index or 0}_{count}.pt"
    try:
        place.mkdir(parents=True, exist_ok=True)
        torch.save(value.detach().clone(), path)
    except (OSError, RuntimeError) as error:  # a full disk must not end a call
        logger.warning("%s not written: %s", path, error)


def _rank_folder() -> str:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return "worldsize1_global_rank0"
    return f"worldsize{distributed.get_world_size()}_global_rank{distributed.get_rank()}"


dump = torch.ops.npugx_cache.dump.default
fx.node.has_side_effect(dump)  # no results: dead-code elimination would take it
