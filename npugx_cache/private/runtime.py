"""Private torch names for which no more specific module exists; the hit path may use all of them.

Nothing here imports `torch._dynamo`, `torch._inductor`, `torch._functorch.aot_autograd` or `sympy`
(P3); `torch._C._dynamo` is the C++ extension and is loaded by `import torch` itself.
"""

from __future__ import annotations

import contextvars
import functools
import json
import sys
import threading
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._C._dynamo.guards as _c_guards
from torch import _ops
from torch._guards import TracingContext
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _device, _python_dispatch
from torch.utils._config_module import ConfigModule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Functions of `torch.backends`, without the Python function around each: they run at every call.
float32_matmul_precision = torch._C._get_float32_matmul_precision
flash_sdp_enabled = torch._C._get_flash_sdp_enabled
mem_efficient_sdp_enabled = torch._C._get_mem_efficient_sdp_enabled
math_sdp_enabled = torch._C._get_math_sdp_enabled
cudnn_sdp_enabled = torch._C._get_cudnn_sdp_enabled
mkldnn_enabled = torch._C._get_mkldnn_enabled
cudnn_enabled = torch._C._get_cudnn_enabled

dispatch_keys = torch._C._dispatch_keys
"""The dispatch key set of a tensor. Its `.raw_repr()` is the same int in all processes with the
same build of torch."""

is_wrapper: Callable[[object], bool] = _python_dispatch.is_traceable_wrapper_subclass
"""Whether a value is a tensor that holds other tensors, and says which (`__tensor_flatten__`)."""


def is_plain(value: torch.Tensor) -> bool:
    """Whether a tensor, or the one that a fake tensor stands for, is of no class of its own."""
    cls = type(value)
    is_fake = (cls.__module__, cls.__name__) == ("torch._subclasses.fake_tensor", "FakeTensor")
    return is_fake or cls in (torch.Tensor, torch.nn.Parameter)


def is_fake(value: object) -> bool:
    """Whether a tensor has no memory: a trace made it. Does not load what makes such tensors."""
    module: Any = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and bool(module.is_fake(value))


def runs_code(value: torch.Tensor) -> bool:
    """Whether the class of a tensor has code that runs when an operator is called with it."""
    cls: Any = type(value)
    is_quiet = cls.__torch_function__ is torch._C._disabled_torch_function_impl
    return not is_quiet or cls.__torch_dispatch__ != torch.Tensor.__torch_dispatch__


def is_in_onnx_export() -> bool:
    """What `torch.onnx.is_in_onnx_export()` says; without `torch.onnx` nothing is exported."""
    return "torch.onnx" in sys.modules and bool(torch.onnx.is_in_onnx_export())


def packs_values(graph: torch.fx.Graph) -> bool:
    """Whether a graph takes or returns other values than its nodes say, as an exported one does."""
    return type(graph._codegen) is not torch.fx.graph.CodeGen


def is_of_pybind(owner: object) -> bool:
    """Whether an object is pybind11's record of a function of C++."""
    return type(owner).__name__ == "PyCapsule" or "pybind11" in type(owner).__module__


without_torch_function = torch._C.DisableTorchFunctionSubclass
"""Context manager in which no `__torch_function__` of a subclass of Tensor is called, as it would
be for each look at a size or a dtype."""

disable_autocast = torch._C._DisableAutocast
"""Context manager under which autocast does not cast the inputs of operators."""

is_any_autocast_enabled = torch._C._is_any_autocast_enabled

AUTOCAST_DEVICES = tuple(getattr(torch._C, "_autocast_supported_devices", tuple)())
"""The kinds of devices that have a dtype of autocast, whether there is such a device or not.

They have the order of the lists in torch's record of its state.
"""

_SCALAR_TYPES = {5: "float16", 6: "float32", 7: "float64", 15: "bfloat16"}
"""The dtypes of autocast, and the default dtype, by their numbers in c10/core/ScalarType.h."""

AUTOCAST_DTYPES = (
    "get_autocast_dtype",
    *(f"get_autocast_{kind}_dtype" for kind in ("cpu", "gpu", "ipu", "xla")),
)
"""The functions of torch's that tell such a dtype."""


def values_of_symbols(env: Any) -> Mapping[Any, Any]:
    """The value that each symbol of a shape environment had at the trace."""
    is_new = hasattr(env, "backed_var_to_val")  # since torch 2.11
    values: Mapping[Any, Any] = env.backed_var_to_val if is_new else env.var_to_val
    return values


def is_traced_here() -> bool:
    """Whether a compiler runs Python code on this thread, on fake tensors or to learn a constant.

    `torch.compiler.is_compiling()` can't tell, because its flag counts for all threads.
    """
    return bool(torch._C._len_torch_dispatch_stack()) or TracingContext.try_get() is not None


def exports_elsewhere() -> bool:
    """Whether another thread is inside `torch.export`, which turns switches off for the process.

    An export turns oneDNN and cuDNN off and later sets them back. This function walks the stacks of
    all threads, so it is too slow for every call.
    """
    here = threading.get_ident()
    stacks = [frame for thread, frame in sys._current_frames().items() if thread != here]
    return any(map(_is_exporting, stacks))


def _is_exporting(stack: types.FrameType) -> bool:
    frame: types.FrameType | None = stack
    while frame is not None:
        if frame.f_code.co_filename in _EXPORT:
            return True
        frame = frame.f_back
    return False


_EXPORT = frozenset(
    str(Path(torch.typename.__code__.co_filename).parent / "export" / name)
    for name in ("_trace.py", "exported_program.py")
)
"""The files whose functions turn the switches off. A call of an exported program runs none of
them."""


def uncompiled(target: Any) -> Any:
    """What `torch.compile` was given, for what it returned. Anything else is itself.

    A module of torch's with hooks of its own, or with another `forward`, does more than the module
    inside; a function that wraps what torch returned has torch's marks, but not torch's code.
    """
    while True:
        kind, own = type(target), getattr(target, "__dict__", {})
        if (kind.__module__, kind.__name__) == (_COMPILED, "OptimizedModule"):
            hooks = (own[name] for name in own if name.endswith("_hooks"))
            if any(hooks) or not _is_torchs(own.get("forward")):
                return target
            target = target._orig_mod
        elif _is_torchs(target) and "_torchdynamo_inline" in own:
            target = own["_torchdynamo_orig_callable"]
        else:
            return target


_COMPILED = "torch._dynamo.eval_frame"


def _is_torchs(function: Any) -> bool:
    own = type(function) is types.FunctionType and function.__globals__
    return bool(own) and own is vars(sys.modules.get(_COMPILED, sys))


BFLOAT16_ON_CPU, FLOAT16_ON_CPU = "onednn_runs_bfloat16", "onednn_runs_float16"


def _onednn(name: str) -> bool:
    asked = getattr(torch.ops.mkldnn, name, None)  # a build without oneDNN has no such operator
    return asked is not None and bool(asked())


ONEDNN_RUNS = {
    BFLOAT16_ON_CPU: functools.partial(_onednn, "_is_mkldnn_bf16_supported"),
    FLOAT16_ON_CPU: functools.partial(_onednn, "_is_mkldnn_fp16_supported"),
}
"""Tell whether oneDNN can run a type on this CPU, by the name of the question in an entry. The
factor `cpu` of the key does not tell, because CPUs with the same widest vectors differ in this."""


def accelerator() -> str | None:
    """The kind of this process's accelerator, such as "npu"; None if there is none."""
    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    return None if found is None else found.type


def current_index(kind: str) -> int | None:
    """The index of this thread's current device; None if `kind` is not the accelerator's."""
    return torch.accelerator.current_device_index() if accelerator() == kind else None


def operator_name(value: object) -> list[str] | None:
    """Portable identity of an operator, or None for any other object."""
    if isinstance(value, _ops.OpOverload):
        namespace, _, name = value._schema.name.partition("::")
        return ["op", namespace, name, value._overloadname]
    if isinstance(value, _ops.OpOverloadPacket):
        return ["packet", str(value)]
    if isinstance(value, _ops.HigherOrderOperator):
        return ["hop", str(value.name())]  # type: ignore[no-untyped-call]
    return None


def calls_of_operators() -> dict[types.CodeType, int]:
    """The code that calls an operator, and the place of the operator among its arguments."""
    called = (_ops.OpOverload.__call__, _ops.OpOverloadPacket.__call__)
    return {each.__code__: 0 for each in called if isinstance(each, types.FunctionType)}


def operator_of(name: str) -> Any:
    """The operator with a name as the dispatcher writes it: `aten::add.Tensor`."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def schema_text(operator: Any) -> str:
    """The signature of an operator, with its aliasing and mutation annotations."""
    return str(operator._schema)


def argument_defaults(operator: Any) -> dict[str, object]:
    """The names of an operator's arguments, in order, with the defaults (None: no default)."""
    return {argument.name: argument.default_value for argument in operator._schema.arguments}


def depends_on_data(value: object) -> bool:
    """Whether a traced tensor has a size, stride or offset that depends on data ("unbacked").

    A list or tuple counts if one of its items does. A plain number that was read from data does not
    count: no trace may depend on its value, so the graph is right for any value. A size counts also
    if torch has assumed a number for it since: `_expr` is the size as it was when it was made.
    """
    if isinstance(value, (list, tuple)):
        return any(map(depends_on_data, value))
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    layout = (*value.shape, *value.stride(), value.storage_offset())
    return any(
        isinstance(size, torch.SymInt)
        and any(str(symbol).startswith("u") for symbol in size.node._expr.free_symbols)
        for size in layout
    )


def global_state() -> dict[str, object]:
    """Thread and process state that changes what a trace would contain, as plain JSON-like data.

    Callers treat `num_threads` apart from the rest: it changes a trace only if the traced code asks
    for it, and a fleet has hosts with different numbers of cores.
    """
    return {
        **_parsed(_c_guards.GlobalStateGuard().__getstate__()),
        "inference_mode": torch.is_inference_mode_enabled(),
        "tls_include": torch._C._dispatch_tls_local_include_set().raw_repr(),
        "tls_exclude": torch._C._dispatch_tls_local_exclude_set().raw_repr(),
        "torch_function_modes": [
            type(torch._C._get_function_stack_at(level)).__qualname__
            for level in range(torch._C._len_torch_function_stack())
        ],
        "torch_dispatch_modes": torch._C._len_torch_dispatch_stack(),
        "default_device": None if _device.CURRENT_DEVICE is None else str(_device.CURRENT_DEVICE),
        "dual_level": torch.autograd.forward_ad._current_level,
        "saved_tensor_hooks": torch._C._autograd._top_saved_tensors_default_hooks(True) is not None,
        "functorch_levels": torch._C._functorch.peek_interpreter_stack() is not None,
        "global_module_hooks": _global_hooks(),
    }


class SameState:
    """Tells whether `global_state` is still as it was when this object was made.

    Cheap enough for every call, because torch's record of its state is not parsed.
    """

    def __init__(self) -> None:
        self._torchs_holds = _c_guards.GlobalStateGuard().check
        self._rest = _rest_of_state()
        found = accelerator()
        kinds = ("cpu",) if found is None else ("cpu", found)
        self._dtypes = [(kind, _autocast_dtype(kind)) for kind in kinds]

    def holds(self) -> bool:
        if not (self._torchs_holds() and _rest_of_state() == self._rest):
            return False
        # torch's guard compares the dtypes of autocast only while autocast is on. A graph that
        # enters autocast itself depends on the dtype that was set before.
        for kind, dtype in self._dtypes:  # noqa: SIM110 - a generator costs a call at every call
            if _autocast_dtype(kind) is not dtype:
                return False
        return True


# By names of this module, because every call asks each of them.
_autocast_dtype = torch.get_autocast_dtype
_is_inference = torch.is_inference_mode_enabled
_included = torch._C._dispatch_tls_local_include_set
_excluded = torch._C._dispatch_tls_local_exclude_set
_dispatch_depth = torch._C._len_torch_dispatch_stack
_function_depth = torch._C._len_torch_function_stack
_function_mode_at = torch._C._get_function_stack_at
_forward_ad = torch.autograd.forward_ad
_saved_tensor_hooks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
_functorch_level = torch._C._functorch.peek_interpreter_stack


def _rest_of_state() -> tuple[object, ...]:
    depth = _function_depth()
    return (
        _is_inference(),
        _included().raw_repr(),
        _excluded().raw_repr(),
        _dispatch_depth(),
        _device.CURRENT_DEVICE,
        _forward_ad._current_level,
        _saved_tensor_hooks(True) is None,
        _functorch_level() is None,
        _global_hooks() if any(_GLOBAL_HOOKS) else 0,
        [type(_function_mode_at(level)) for level in range(depth)] if depth else None,
    )


def function_modes() -> list[Any]:
    """The modes of this thread that override functions of torch, the outermost first."""
    depth = torch._C._len_torch_function_stack()
    return [torch._C._get_function_stack_at(level) for level in range(depth)]


def add_function_modes(modes: list[Any]) -> None:
    """Enter more of these modes, inside those that there are, such as that of a default device."""
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def _global_hooks() -> int:
    """The number of hooks that are registered for all modules, without the hooks of AOTAutograd.

    AOTAutograd registers a hook during each trace. All threads share the hooks, so if that hook
    counted, the graphs of every other thread would be refused while one thread compiles.
    """
    every = [hook for hooks in _GLOBAL_HOOKS for hook in tuple(hooks.values())]
    return sum(getattr(hook, "__module__", "") != _AOT for hook in every)


_AOT = "torch._functorch._aot_autograd.utils"
_NOT_SET, _AS_WRITTEN = 0, 1


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> dict[str, object]:
    """Parse torch's record of its state, and write dtypes and devices of autocast as names.

    A process without torch can show the names (`npugx-cache diff`).
    A default has one value, whether it was set or not. Since torch 2.15 the precision of matrix
    products on a GPU has two: one for "never set", and another one after
    `set_float32_matmul_precision("highest")`, though both mean the same.
    """
    state: dict[str, Any] = json.loads(text)
    if state.get("cuda_matmul_precision") == _NOT_SET:
        state["cuda_matmul_precision"] = _AS_WRITTEN
    state["default_dtype"] = _dtype_name(state["default_dtype"])
    autocast = state["autocast_state"]
    switches = enumerate(zip(autocast.pop("enabled"), autocast.pop("dtype"), strict=True))
    autocast["devices"] = {
        AUTOCAST_DEVICES[at] if at < len(AUTOCAST_DEVICES) else f"device {at}": (
            f"{'on' if enabled else 'off'} with {_dtype_name(dtype)}"
        )
        for at, (enabled, dtype) in switches
    }
    return state


_CPU_QUESTION = "_is_", "_supported"


def cpu_features() -> list[str]:
    """The instructions of this processor that code can ask `torch.cpu` for, as torchao does.

    The code of a tensor that holds others may ask where no trace sees the question.
    """
    first, last = _CPU_QUESTION
    return sorted(
        name[len(first) : -len(last)]
        for name, ask in vars(torch.cpu).items()
        if name.startswith(first)
        and name.endswith(last)
        and len(name) > len(first + last)
        and ask()
    )


def _dtype_name(number: int) -> str:
    return _SCALAR_TYPES.get(number, f"the scalar type {number}")


_GLOBAL_HOOKS = tuple(
    hooks
    for name, hooks in vars(sys.modules["torch.nn.modules.module"]).items()
    if name.startswith("_global_") and isinstance(hooks, dict)
)


MARK_OF_CONSTANTS = "_dynamo_marked_constant"
"""The attribute of functions whose authors call them `assume_constant_result`."""

DIMENSION_MARKS = (
    "_dynamo_dynamic_indices",
    "_dynamo_weak_dynamic_indices",
    "_dynamo_unbacked_indices",
    "_dynamo_strict_unbacked_indices",
    "_dynamo_static_indices",
)
"""Attributes that `mark_dynamic` and similar functions leave on a tensor."""


_SETTINGS_WITHOUT_EFFECT = frozenset(
    {
        # We set some around a trace; users set others to log more or to recompile more often.
        "record_runtime_overhead",
        "verbose",
        "recompile_limit",
        "cache_size_limit",
        "accumulated_recompile_limit",
        "accumulated_cache_size_limit",
        "suppress_errors",
        "log_compilation_metrics",
        "caching_precompile",
    }
)


def dynamo_settings() -> tuple[tuple[str, object], ...]:
    """Dynamo's settings that differ from their defaults; nothing while Dynamo is not loaded.

    `config.compiler_environment` lists settings that come from environment variables.
    """
    changed = changed_settings("torch._dynamo.config", _SETTINGS_WITHOUT_EFFECT)
    above = sys.modules.get("torch.compiler.config")
    return (*changed, (ONE_RANK, True)) if getattr(above, ONE_RANK, False) else changed


def lowering_settings() -> tuple[tuple[str, object], ...]:
    """Settings that fake tensors and symbolic sizes heed, if they differ from their defaults."""
    sizes = changed_settings("torch.fx.experimental._config", frozenset())
    functorch = changed_settings("torch._functorch.config", frozenset())
    return (*sizes, *(each for each in functorch if each[0].startswith("fake_tensor_")))


def sdp_priority() -> list[int]:
    """The order in which attention tries its kernels."""
    return list(torch._C._get_sdp_priority_order())


def einsum_settings() -> str:
    """How `torch.einsum` chooses the order of its products."""
    chosen = torch.backends.opt_einsum
    if not chosen.is_available() or not chosen.enabled:
        return "off"
    version = getattr(chosen.get_opt_einsum(), "__version__", "")
    return f"{chosen.strategy} {version}"


def default_device() -> torch.device | None:
    """What `torch.set_default_device` set."""
    return None if _device.CURRENT_DEVICE is None else torch.device(_device.CURRENT_DEVICE)


ONE_RANK = "compile_on_one_rank"
"""A setting of `torch.compiler.config` since torch 2.15, which traced collectives read."""


BEHIND = "_settings_behind"
"""Where a module that stands in for one of torch's config modules for a while holds the real one:
`guard_managers.building` puts one in the place of Dynamo's, and other threads find that one."""


def changed_settings(name: str, ignored: frozenset[str]) -> tuple[tuple[str, object], ...]:
    """The settings in one of torch's config modules that differ from their defaults.

    Nothing while the module is not loaded, or is being loaded by another thread: nobody can have
    changed a setting yet.
    """
    module: Any = sys.modules.get(name)
    module = getattr(module, "__dict__", {}).get(BEHIND, module)
    if not isinstance(module, ConfigModule):  # it becomes one at the end of its import
        return ()
    return tuple(
        (setting, functools.reduce(getattr, setting.split("."), module))
        for setting, entry in sorted(module._config.items())
        if setting not in ignored and _is_changed(module, setting, entry)
    )


def _is_changed(module: Any, name: str, entry: Any) -> bool:
    # torch treats a setting that was patched and put back as set by the user to its old value.
    override = entry.user_override
    if isinstance(override, contextvars.ContextVar):  # since torch 2.12
        override = override.get()
    if type(override) is object or entry.alias is not None:  # never set, as nearly all settings
        return False
    return not module._is_default(name) and bool(override != entry.default)


copy_each = torch._foreach_copy_
"""Copy each of a list of tensors into its counterpart, in one call."""


def count_writes(tensors: list[torch.Tensor]) -> None:
    """Raise the version counters of tensors that were written to by other code than an operator.

    Inference tensors have no version counter.
    """
    counting = [tensor for tensor in tensors if not tensor.is_inference()]
    torch.autograd.graph.increment_version(counting)


class StorageReference:
    """A weak reference to the memory of a tensor; it expires with the last tensor on the memory."""

    __slots__ = ("_reference",)

    def __init__(self, tensor: torch.Tensor) -> None:
        reference: Any = StorageWeakRef
        self._reference = reference(tensor.untyped_storage())

    def expired(self) -> bool:
        return bool(self._reference.expired())


def unowned(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same memory that does not keep the memory alive.

    The tensor must not be used after the owner has freed the memory.
    """
    memory = tensor.untyped_storage()
    storage = torch._C._construct_storage_from_data_pointer(
        memory.data_ptr(), memory.device, memory.nbytes()
    )
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def cann_version() -> str:
    """The version of the NPU's runtime and compilers; only where torch_npu is loaded."""
    utils: Any = sys.modules.get("torch_npu.npu.utils")
    return str(utils.get_cann_version()) if hasattr(utils, "get_cann_version") else "unknown"
