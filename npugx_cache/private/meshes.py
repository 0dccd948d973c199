"""Names what torch.distributed.tensor says of a sharded tensor: its mesh, placements and sizes.

Every rank of a mesh makes the same objects. What differs between ranks is which part of a tensor a
rank holds. That is no part of a name, so that ranks with equal graphs share an entry; a graph that
depends on the rank has a condition on the rank.
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from npugx_cache.private import process_groups

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator

PART = "_local_tensor"
"""The attribute of a sharded tensor that is the part of this rank."""

_MESHES = "torch.distributed.device_mesh"
_TENSORS = "torch.distributed.tensor"
_FIELDS = {
    "Replicate": (),
    "Shard": ("dim",),
    "Partial": ("reduce_op",),
    "_StridedShard": ("dim", "split_factor"),
}
"""The placements, and all that each of them holds."""


class NoName(Exception):
    """Something of a mesh or a sharded tensor has no name across processes; the text says what."""


def _loaded(module: str, name: str) -> Any:
    """A class or a function of a module; None if nobody loaded the module, or it has no such."""
    return getattr(sys.modules.get(module), name, None)


def is_mesh(value: object) -> bool:
    return type(value) is _loaded(_MESHES, "DeviceMesh")


def is_sharded(value: object) -> TypeGuard[torch.Tensor]:
    """Whether it is a DTensor of a plain tensor; its parts then are that tensor and the mesh."""
    if type(value) is not _loaded(_TENSORS, "DTensor"):
        return False
    made: Any = value
    held = type(getattr(made, PART))
    return held is torch.Tensor or held is torch.nn.Parameter or _is_fake(held)


def _is_fake(kind: type) -> bool:
    return kind is _loaded("torch._subclasses.fake_tensor", "FakeTensor")


def is_fixed(value: object) -> bool:
    """Whether it keeps its name as long as it is that very object."""
    kind = type(value)
    return (
        is_mesh(value)
        or kind is _loaded(f"{_TENSORS}._dtensor_spec", "DTensorSpec")
        or kind in _placements()
    )


def facts_of(value: object) -> list[Any] | None:
    """The name of a mesh, a layout (`DTensorSpec`) or a placement; None for anything else.

    Raises `NoName`.
    """
    if is_mesh(value):
        return ["mesh", *_facts_of_mesh(value)]
    if type(value) in _placements():
        return _facts_of_placement(value)
    if type(value) is _loaded(f"{_TENSORS}._dtensor_spec", "DTensorSpec"):
        return ["layout", *_facts_of_layout(value)]
    return None


def placement(kind: str, *fields: Any) -> Any:
    """The placement with a name that `facts_of` gave."""
    return _loaded(f"{_TENSORS}.placement_types", kind)(*fields)


def _placements() -> tuple[Any, ...]:
    if f"{_TENSORS}.placement_types" not in sys.modules:
        return ()
    return tuple(_loaded(f"{_TENSORS}.placement_types", name) for name in _FIELDS)


def _facts_of_placement(value: Any) -> list[Any]:
    name = type(value).__name__
    fields = [getattr(value, field) for field in _FIELDS[name]]
    if not {int, str}.issuperset(map(type, fields)):
        raise NoName(f"a {name} with sizes that are dynamic")
    return ["placement", name, *fields]


def _facts_of_layout(spec: Any) -> Iterator[Any]:
    """Everything but the mesh, which is named by itself."""
    meta = spec.tensor_meta
    numbers = [] if meta is None else [*meta.shape, *meta.stride]
    if not {int}.issuperset(map(type, numbers)):
        raise NoName("a sharded tensor has sizes that are dynamic")
    placements = [facts_of(each) for each in spec.placements]
    if None in placements:
        kinds = ", ".join(type(each).__qualname__ for each in spec.placements)
        raise NoName(f"a sharded tensor has placements of other kinds than torch's own: {kinds}")
    yield placements
    yield [] if meta is None else [[*meta.shape], [*meta.stride], str(meta.dtype)]
    yield [[each.tensor_dim, [*each.mesh_dims]] for each in spec.shard_order or ()]
    yield repr(getattr(spec, "use_strided_shard_as_shard_order", None))


def _facts_of_mesh(mesh: Any) -> Iterator[Any]:
    if mesh._coordinate_on_dim is None:
        raise NoName("this rank is not in the mesh")
    if not _is_of_this_rank(mesh):
        raise NoName("the mesh is that of another rank")
    yield from _own_facts(mesh)
    root = mesh._get_root_mesh()
    # `get_group` finds a flattened mesh in the root, and a redistribution may run on it.
    yield [] if root is mesh else [*_own_facts(root)]
    flattened = sorted(root._flatten_mapping.items())
    yield [[name, *_own_facts(each)] for name, each in flattened if is_mesh(each)]
    yield _switches()


def _is_of_this_rank(mesh: Any) -> bool:
    rank = torch.distributed.get_rank()
    if hasattr(mesh, "_rank"):
        return bool(mesh._rank == rank)
    # Torch 2.10 keeps only where in the mesh the rank is.
    return bool((mesh.mesh == rank).nonzero().tolist() == [mesh._coordinate_on_dim])


def _own_facts(mesh: Any) -> Iterator[Any]:
    yield mesh.device_type
    yield str(mesh._layout)
    yield [*mesh._flatten_rank_map]
    yield [*(mesh.mesh_dim_names or ())]
    for name in getattr(mesh, "_dim_group_names", ()):
        group = process_groups.find(name)
        if group is None:
            raise NoName(f"the process group {name!r} of the mesh is gone")
        yield [*process_groups.facts_of(group)]


def _switches() -> list[str]:
    """What steers how operators on sharded tensors are split up. Raises `NoName`."""
    sharded = _loaded(_TENSORS, "DTensor")
    if sharded is None:
        return []
    known: Any = sharded._op_dispatcher.sharding_propagator
    since_2_11 = getattr(known, "op_single_dim_strategy_funcs", {})
    for table in (known.op_to_rules, known.op_strategy_funcs, since_2_11):
        for operator, rule in table.items():
            home = str(getattr(getattr(rule, "func", rule), "__module__", ""))
            if not home.startswith(f"{_TENSORS}._ops."):
                raise NoName(f"the rule by which {operator} is split up is not torch's own")
    planner = sys.modules.get(f"{_TENSORS}._redistribute")
    found = [f"{name}={getattr(planner, name, None)}" for name in _PLANNING]
    replicates = sharded._op_dispatcher._allow_implicit_replication
    return [*found, f"_allow_implicit_replication={replicates}"]


_PLANNING = (
    "_FORCE_MIN_COST_REDISTRIBUTION_PLAN",
    "_DISABLE_REDISTRIBUTE_TRANSFORM_OPTIMIZATION",
)


def forget_plans() -> None:
    """Drop torch's plans for operators on sharded tensors.

    A plan may depend on the rank. A trace that found the plan of an earlier call would not ask for
    the rank once more.
    """
    sharded = _loaded(_TENSORS, "DTensor")
    if sharded is not None:
        sharded._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
        torch._C._clear_DTensor_sharding_propagator_cache()


def asking_for_rank() -> frozenset[types.CodeType]:
    """The code of the functions that tell the place of this rank, in a mesh or at all."""
    mesh, distributed = _loaded(_MESHES, "DeviceMesh"), torch.distributed
    if mesh is None:
        return frozenset()
    names = ("get_rank", "get_local_rank", "get_coordinate", _COORDINATE)
    functions = [getattr(mesh, name) for name in names if hasattr(mesh, name)]
    functions += [distributed.get_rank, distributed.get_group_rank]
    return frozenset(each.__code__ for each in functions)


_COORDINATE = "_sym_get_coordinate"


def is_same_on_all_ranks(call: types.FrameType) -> bool:
    """Whether what follows from a call of such a function is the same on all ranks of the mesh."""
    mesh, caller = _loaded(_MESHES, "DeviceMesh"), call.f_back
    if mesh is None or caller is None:
        return False
    if call.f_code is mesh.get_coordinate.__code__:
        return _only_whether_inside(caller)
    coordinate = getattr(mesh, _COORDINATE, None)  # since torch 2.11
    return coordinate is not None and call.f_code is coordinate.__code__ and _is_even(caller)


def _only_whether_inside(caller: types.FrameType) -> bool:
    """Whether the caller only looks whether this rank is in the mesh.

    The dispatcher of sharded tensors, which is C++, calls for no other reason. C++ has no frame:
    the caller is then Python code that does not name what is called.
    """
    shard = _loaded(f"{_TENSORS}.placement_types", "Shard")
    asks_only = None if shard is None else shard._reduce_shard_tensor.__code__
    return caller.f_code is asks_only or "get_coordinate" not in caller.f_code.co_names


def _is_even(caller: types.FrameType) -> bool:
    """Whether the caller computes the size of this rank's part, and all parts have one size."""
    part_of = _loaded(f"{_TENSORS}._utils", "_compute_local_shape_and_global_offset")
    if part_of is None or caller.f_code is not part_of.__code__:
        return False
    given = caller.f_locals
    shape, mesh, placements = (given[n] for n in ("global_shape", "mesh_shape", "placements"))
    split = {each.dim for each in placements if hasattr(each, "dim")}
    if not given["skip_offset"] or any(type(shape[dim]) is not int for dim in split):
        return False
    fixed = [size if dim in split else 1 for dim, size in enumerate(shape)]
    places = itertools.product(*map(range, mesh))
    return len({part_of(fixed, mesh, list(each), placements, True) for each in places}) == 1
