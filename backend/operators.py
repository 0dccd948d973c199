"""Registers the operators `npugx_cache::*`, which stored programs call for dumps and scopes.

Importing this module registers the operators, with `torch.library.Library`, which loads no
compiler.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from npugx_cache.backend.program import SCOPES
from npugx_cache.events import logger
from npugx_cache.private import determinism

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMESPACE = "npugx_cache"

_library: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
_library.define("dump(Tensor value, str node, str folder) -> ()")
_library.define("limit_cores(int cube, int vector) -> ()")
_library.define("restore_cores() -> ()")
_library.define("set_determinism(int level) -> ()")
_library.define("restore_determinism() -> ()")

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
fx.node.has_side_effect(dump)  # it returns nothing, so dead-code elimination would drop it


class Limited(NamedTuple):
    """A stream whose cores are limited, and its limits before that."""

    stream: Any
    cube: int
    vector: int

    def undo(self) -> None:
        _npu().set_stream_limit(self.stream, self.cube, self.vector)


def limit(cube: int, vector: int, stream: Any = None) -> Limited:
    """Limit the cores of a stream, by default the current one."""
    stream = _npu().current_stream() if stream is None else stream
    before = _npu().get_stream_limit(stream)
    _npu().set_stream_limit(stream, cube, vector)
    return Limited(stream, before["cube_core_num"], before["vector_core_num"])


class Determined(NamedTuple):
    """The level of determinism before a scope, and torch's own setting before the scope."""

    level: int
    told: determinism.Told

    def undo(self) -> None:
        determinism.tell(self.told)
        determinism.set_level(self.level)


def determine(level: int) -> Determined:
    """Set the level of determinism, for the whole process."""
    before = Determined(determinism.level(), determinism.told())
    determinism.set_level(level)
    return before


def _npu() -> Any:
    return vars(torch)["npu"]


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.open: list[Limited | Determined] = []
        self.traced: list[determinism.Told] = []


_scopes = _Scopes()


@torch.library.impl(_library, "limit_cores", "CompositeExplicitAutograd")
def _limit_cores(cube: int, vector: int) -> None:
    _scopes.open.append(limit(cube, vector))


@torch.library.impl(_library, "set_determinism", "CompositeExplicitAutograd")
def _set_determinism(level: int) -> None:
    _scopes.open.append(determine(level))


def _close() -> None:
    _scopes.open.pop().undo()


def _nothing(*_: int) -> None:
    """The fake implementation of the core limits: a trace runs no kernels."""


def _traced(level: int) -> None:
    """The fake implementation of `set_determinism`: set torch's switch, but not the NPU's level.

    Torch decides by this switch which operators a call becomes, and decides so during the trace.
    """
    before = determinism.told()
    _scopes.traced.append(before)
    if before.enabled != (level > 0):
        determinism.tell(determinism.Told(enabled=level > 0, warn_only=False))


def _end_traced() -> None:
    determinism.tell(_scopes.traced.pop())


for _name in SCOPES.values():
    torch.library.impl(_library, _name, "CompositeExplicitAutograd")(_close)
for _name, _fake in (
    ("limit_cores", _nothing),
    ("restore_cores", _nothing),
    ("set_determinism", _traced),
    ("restore_determinism", _end_traced),
):
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _fake, lib=_library)
    fx.node.has_side_effect(getattr(torch.ops.npugx_cache, _name).default)


def scope_operator(name: str) -> Any:
    """The operator that begins or ends a scope, by a name of `SCOPES`."""
    return getattr(torch.ops.npugx_cache, name).default


@contextlib.contextmanager
def scopes_closed() -> Iterator[None]:
    """Close at the end all scopes that are still open because an operator inside raised."""
    before = len(_scopes.open)
    try:
        yield
    finally:
        while len(_scopes.open) > before:
            _close()
