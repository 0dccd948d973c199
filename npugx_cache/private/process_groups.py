"""Finds process groups of torch.distributed by name, and reads what a trace can ask of a group."""

from __future__ import annotations

from typing import Any

import torch


def find(name: str) -> Any:
    """The process group with this name, or None."""
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
    """Name, description, backends and ranks of a process group: all that a trace can ask of it.

    The rank of this process in the group is left out, because it follows from the group's ranks and
    the global rank.
    """
    known: Any = torch.distributed.distributed_c10d._world
    # These tables have no row for a group that was not made by `new_group`.
    ranks = [*known.pg_group_ranks.get(group, range(group.size()))]
    return group.group_name, group.group_desc, known.pg_backend_config.get(group, ""), ranks


def shortest_timeout() -> float | None:
    """The seconds after which a collective of this process fails first, or None without a group."""
    distributed: Any = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    found = []
    for group in distributed.distributed_c10d._world.pg_map:
        for device in group._device_types:
            try:
                backend = group._get_backend(device)
            except RuntimeError:  # none was made for this device
                continue
            # A group that is simulated has no timeout.
            timeout = getattr(getattr(backend, "options", None), "_timeout", None)
            found += [] if timeout is None else [timeout.total_seconds()]
    return min(found, default=None)
