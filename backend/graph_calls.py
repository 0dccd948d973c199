"""Decides which calls may stand in a graph of Dynamo's: those of which lowering loses nothing.

Dynamo puts any function of torch into its graph. A lowered graph holds only operators, so it would
silently lose a call that changes a state of torch or has another effect. Therefore the allowed
calls are listed: operators and arithmetic, which are lowered; modes, which the lowering follows;
and a few calls of which nothing has to be kept, each with the reason. Everything else is refused
before Dynamo has run it. Importing this module loads the compiler.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import _ops, fx
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.autograd.grad_mode import _enter_inference_mode, _exit_inference_mode
from torch.nn import attention

from npugx_cache.backend import subgraphs
from npugx_cache.private import streams, vendor_scopes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_OPERATORS = (_ops.OpOverload, _ops.OpOverloadPacket, _ops.HigherOrderOperator)

_C: Any = torch._C
_GENERATED = tuple(
    getattr(_C, name)
    for name in (
        *("_VariableFunctions", "TensorBase", "_nn", "_linalg", "_fft", "_special", "_sparse"),
        "_nested",
    )
)
"""Where torch keeps the functions that it generates from its operators."""

_COMPUTING = frozenset(
    {
        *("_operator", "math", "torch.functional", "torch.nn.functional", "torch._lowrank"),
        *("torch._linalg_utils", "torch.masked._ops", "torch.signal.windows.windows"),
        *("torch.nn.grad", "torch.autograd.functional", "torch.nested"),
    }
)
"""Modules in which every function only computes something from its arguments."""

_DYNAMOS = ("torch._dynamo.", "torch._functorch.")
"""Functions that Dynamo itself puts into a graph, and those of functorch. Lowering resolves the
transforms of functorch into operators."""

_BUILTINS = frozenset(
    {
        *(abs, all, any, bool, complex, divmod, float, getattr, int, len, list, max, min, pow),
        *(range, round, slice, sum, tuple),
    }
)

_FOLLOWED = (
    "torch._C._set_grad_enabled",
    "torch._C._set_fwd_grad_enabled",
    "torch.autograd.grad_mode._enter_inference_mode",
    "torch.autograd.grad_mode._exit_inference_mode",
    "torch.amp.autocast_mode._enter_autocast",
    "torch.amp.autocast_mode._exit_autocast",
    "torch.nn.attention._sdpa_kernel",
    "torch._C._autograd._saved_tensors_hooks_disable",
    "torch._C._autograd._saved_tensors_hooks_enable",
)
"""Functions that set a mode. The lowering calls them, so operators are traced as they run in the
mode. A graph that leaves one of `Modes` changed is refused."""

_ENTERED: dict[Any, Any] = {
    _enter_autocast: _exit_autocast,
    _enter_inference_mode: _exit_inference_mode,
}
"""For each function that enters a mode, the one that leaves it, given the first one's result."""

_COMPUTED = (
    "torch.Size",
    "torch.nn.attention._backend_from_string",
    "torch._refs.tensor",  # Dynamo's torch.tensor, for numbers that are symbolic
    "torch.autograd.grad",
    "torch.sparse.sum",
    "torch._C._autograd._get_data_attr",
    "torch._utils._element_size",
    "torch._utils._flatten_dense_tensors",
    "torch._utils._unflatten_dense_tensors",
    "torch.distributed.tensor.DTensor.from_local",
)
"""Further functions, in no group above, that only compute something from their arguments."""

_FUNCTORCHS = tuple(
    f"torch._C._functorch.{name}"
    for name in (
        *("_add_batch_dim", "_remove_batch_dim", "_wrap_for_grad", "_unwrap_for_grad"),
        *("_unwrap_batched", "_grad_increment_nesting", "_grad_decrement_nesting"),
        *("_jvp_increment_nesting", "_jvp_decrement_nesting", "_vmap_increment_nesting"),
        *("_vmap_decrement_nesting", "set_inplace_requires_grad_allowed", "is_batchedtensor"),
        *("pop_dynamic_layer_stack", "push_dynamic_layer_stack", "unwrap_if_dead"),
    )
)

_ANSWERED = (
    "torch._C._are_functorch_transforms_active",
    "torch._C._get_cudnn_sdp_enabled",
    "torch._C._get_flash_sdp_enabled",
    "torch._C._get_math_sdp_enabled",
    "torch._C._get_mem_efficient_sdp_enabled",
    "torch._C._get_overrideable_sdp_enabled",
    "torch._C._is_autocast_available",
    "torch._C._SDPAParams",
    "torch.backends.cuda.can_use_cudnn_attention",
    "torch.backends.cuda.can_use_efficient_attention",
    "torch.backends.cuda.can_use_flash_attention",
    "torch.backends.cuda.is_flash_attention_available",
)
"""Functions that ask for a state of torch. The state is part of the key or checked at each call."""

_CHECKED = (
    "torch._assert",
    "torch._check",
    "torch._check_index",
    "torch._check_is_size",
    "torch._check_not_implemented",
    "torch._check_tensor_all",
    "torch._check_type",
    "torch._check_value",
    "torch._constrain_as_size",
)
"""Checks. Lowering turns a check of sizes into guards, and a check of tensors into operators."""

_NOTHING_TO_KEEP = {
    "torch._C._log_api_usage_once": "counts the use of an API, at most once in a process",
    "torch.clear_autocast_cache": "drops copies, which are made again where they are needed",
    "torch.autograd.forward_ad._maybe_load_decompositions": "loads what the lowering then uses",
}

_LISTED = (*_FOLLOWED, *_COMPUTED, *_FUNCTORCHS, *_ANSWERED, *_CHECKED, *_NOTHING_TO_KEEP)


def refused(kind: str, target: Any) -> str | None:
    """Why a call of the target may not stand in a graph; None if it may."""
    if kind != "call_function" or _may_stand(target):
        return None  # a method is one of a tensor; lowering sees the operators that it calls
    return not_held(_name(target))


def refused_arguments(target: Any, kwargs: Mapping[str, Any]) -> str | None:
    """Why a call may not stand in a graph with these arguments, though others may.

    A trace would call collectives, for which ranks that find a stored graph don't come.
    """
    if kwargs.get("run_check") and _is_any(target, (_FROM_LOCAL,)):
        return "DTensor.from_local(run_check=True) calls collectives while it is traced"
    return None


_FROM_LOCAL = "torch.distributed.tensor.DTensor.from_local"


def not_held(name: str) -> str:
    return f"{name} has an effect or an answer that a graph does not hold"


def first_refused(graph_module: fx.GraphModule) -> tuple[fx.Node, str] | None:
    """The first refused call of a graph or of the graphs inside it, and why it is refused."""
    for node in subgraphs.nodes_of(graph_module):
        what = refused(node.op, node.target)
        if what is not None:
            return node, what
    return None


SET_GRAD_MODE: Callable[[bool], None] = _C._set_grad_enabled


def sets_grad_mode(target: Any) -> bool:
    """Whether the target switches gradients on or off."""
    return target is SET_GRAD_MODE


def differentiates(graph_module: fx.GraphModule) -> bool:
    """Whether a graph, or a graph inside it, computes gradients by `torch.func`."""
    begin = _C._functorch._grad_increment_nesting
    return any(node.target is begin for node in subgraphs.nodes_of(graph_module))


def is_entered(target: Any) -> bool:
    """Whether the target enters a mode that another call leaves."""
    return _in(target, frozenset(_ENTERED))


def is_left(target: Any) -> bool:
    return _in(target, frozenset(_ENTERED.values()))


def may_leave_nothing(node: fx.Node) -> bool:
    """Whether a call may return None and also leave no operator in the lowered graph."""
    if node.op != "call_function":
        return node.op != "call_method"
    if isinstance(node.target, _OPERATORS):
        return isinstance(node.target, _ops.HigherOrderOperator)
    return _is_any(node.target, (*_FOLLOWED, *_CHECKED, *_NOTHING_TO_KEEP)) or _is_a_mode(node)


class Modes(NamedTuple):
    """The modes that calls in a graph can change."""

    grad: bool
    inference: bool
    forward_grad: bool
    attention: tuple[Any, ...]
    transforms: int

    def set(self) -> None:
        """Restore all modes but inference mode, which `end` restores."""
        _C._set_grad_enabled(self.grad)
        _C._set_fwd_grad_enabled(self.forward_grad)
        attention._sdpa_kernel(self.attention, set_priority=True)
        while _C._functorch.get_dynamic_layer_stack_depth() > self.transforms:
            _C._functorch.pop_dynamic_layer_stack()


def modes() -> Modes:
    return Modes(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        _C._is_fwd_grad_enabled(),
        tuple(attention._cur_sdpa_kernel_backends(with_priority=True)),
        _C._functorch.get_dynamic_layer_stack_depth(),
    )


def end(values: Mapping[fx.Node, Any]) -> None:
    """Leave the modes that a graph entered, if it raised. `values`: the results until then."""
    for node in reversed(list(values)):
        if node.op == "call_function" and _in(node.target, frozenset(_ENTERED)):
            _ENTERED[node.target](values[node])


def last_that_sets_a_mode(graph: fx.Graph) -> fx.Node | None:
    found = (node for node in reversed(graph.nodes) if _is_any(node.target, _FOLLOWED))
    return next(found, None)


def _may_stand(target: Any) -> bool:
    if isinstance(target, _OPERATORS) or _in(target, _overridable()) or _is_any(target, _LISTED):
        return True
    name, module = getattr(target, "__name__", ""), _module(target)
    if any(getattr(place, name, None) is target for place in _GENERATED):
        return True
    if module in _COMPUTING or module.startswith(_DYNAMOS) or _in(target, _BUILTINS):
        return True
    if streams.is_known(target) or vendor_scopes.is_marker(target):
        return True
    # Functions that users let Dynamo record as one call are refused by `opaque`, with a better
    # reason.
    return module.partition(".")[0] not in ("torch", "torch_npu", "builtins")


def _module(target: Any) -> str:
    return getattr(target, "__module__", None) or type(target).__module__


def _name(target: Any) -> str:
    names = (getattr(target, "__qualname__", ""), getattr(target, "__name__", ""))
    name = next((name for name in names if name and "pybind11" not in name), repr(target))
    module = "torch._C" if "pybind11" in names[0] else _module(target)
    return name if module == "builtins" else f"{module}.{name}"


def _in(target: Any, known: frozenset[Any]) -> bool:
    try:
        return target in known
    except TypeError:  # not hashable
        return False


def _is_any(target: Any, paths: tuple[str, ...]) -> bool:
    return any(_found(path) is target for path in paths)


@functools.cache
def _found(path: str) -> Any:
    """The object at a path; a new object, which equals no other, if this torch has none there."""
    names = path.split(".")[1:]
    try:
        return functools.reduce(getattr, names, torch)
    except AttributeError:
        return object()


@functools.cache
def _overridable() -> frozenset[Any]:
    """Functions that torch lets subclasses of tensors override. They only compute on tensors."""
    found: dict[Any, list[Any]] = torch.overrides.get_overridable_functions()
    return frozenset(function for functions in found.values() for function in functions)


def _is_a_mode(node: fx.Node) -> bool:
    """Whether a call enters or leaves a mode of functorch, switches streams, or marks a scope."""
    return (
        _module(node.target).startswith(_DYNAMOS)
        or _is_any(node.target, _FUNCTORCHS)
        or streams.is_known(node.target)
        or vendor_scopes.is_marker(node.target)
    )
