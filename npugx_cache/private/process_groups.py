"""Process groups, by name and by what a trace can ask of them. Checked on torch 2.11 and 2.13."""

from __future__ import annotations

from typing import Any

import torch


def find(name: str) -> Any:
    """The process group of a name, None where there is no such group."""
    distributed: Any = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    try:
        return distributed.distributed_c10d._resolve_process_group(name)
    except (RuntimeError, ValueError, KeyError):
        return None


def is_group(value: object) -> bool:
    distributed: Any = torch.distributed
    return bool(distributed.is_available()) and isinstance(value, distributed.ProcessGroup)


def facts_of(group: Any) -> tuple[str, str, str, list[int]]:
    """Name, description, backends and ranks of a process group: all that a trace can ask it for.

    But for the rank of this process in it, which follows from its ranks and the rank among all.
    """
    known: Any = torch.distributed.distributed_c10d._world
    # A group that was not made by `new_group` is in none of these tables.
    ranks = [*known.pg_group_ranks.get(group, range(group.size()))]
    return group.group_name, group.group_desc, known.pg_backend_config.get(group, ""), ranks
