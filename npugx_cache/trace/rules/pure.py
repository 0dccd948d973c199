"""The functions whose answers Dynamo may give itself, because the arguments alone decide them.

Dynamo does not look into these functions, or runs them itself and makes a constant of the answer.
An answer needs no condition where it depends on the values of the arguments alone: each argument
has its guard. A function that asks anything else (the environment, a file, an address, what is
imported) is not listed, and a call of it refuses the trace, unless a condition asks again.

A function is found by its name when the table is first needed, and compared by identity: another
one that has the same name since then is not in the table.
"""

from __future__ import annotations

import collections
import functools
import importlib
import types
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MODULES = ("math", "cmath", "operator", "_operator", "itertools", "keyword", "_functools")
"""Modules of Python's whose functions compute something from their arguments, and keep nothing."""

_BUILTINS = """
    abs all any bin bool bytearray bytes callable chr complex divmod enumerate filter float format
    frozenset getattr hasattr hex int isinstance issubclass iter len map max min next oct ord pow
    range repr reversed round sorted str sum tuple type zip
    dict list set slice object super staticmethod classmethod property setattr delattr vars
"""
"""Builtins that ask their arguments alone. What the traced code can make of its own arguments, as
`getattr` and `isinstance` do, is watched where values and classes are read. Not here: `id` and
`hash`, which differ between processes, `print` and `input`, `open`, `eval`, `globals`."""

_STANDARD = """
    functools.partial functools.reduce collections.OrderedDict collections.deque
    collections.defaultdict collections.Counter collections.namedtuple
    numpy.float64 types.SimpleNamespace types.MethodType types.MappingProxyType types.GenericAlias
    typing.cast dataclasses.fields dataclasses.is_dataclass inspect.signature
    bisect.bisect_left bisect.bisect_right weakref.ref
"""
"""Of the standard library, whose version is in the key."""

_OF_CONSTANTS = """
    re.match re.search re.fullmatch re.findall re.split re.sub re.subn re.escape re.compile
    os.fspath sys.intern string.capwords struct.pack struct.unpack struct.calcsize
    torch._C._has_torch_function torch._C._has_torch_function_variadic
    torch.overrides.has_torch_function torch.overrides.has_torch_function_variadic
    torch.overrides.is_tensor_like
    torch.nn.modules.utils._single torch.nn.modules.utils._pair
    torch.nn.modules.utils._triple torch.nn.modules.utils._quadruple
"""
"""What is pure only if each argument is a tensor, a plain constant or a container of such values:
for others Python runs code of theirs, such as what `re.sub` calls, or asks their classes."""

_TORCH = """
    torch.compiler.is_compiling torch.compiler.is_dynamo_compiling torch.compiler.is_exporting
    torch.jit.is_scripting torch.jit.is_tracing torch._jit_internal.is_scripting
    torch.is_tensor torch.is_storage torch.is_floating_point torch.is_complex torch.numel
    torch.is_grad_enabled torch.is_inference_mode_enabled torch.is_autocast_enabled
    torch.is_autocast_cpu_enabled torch.is_autocast_cache_enabled torch._C._get_cublas_allow_tf32
    torch.get_autocast_dtype torch.are_deterministic_algorithms_enabled torch.get_default_dtype
    torch._C._is_grad_enabled torch._C.is_grad_enabled
    torch._C._has_torch_function_unary torch.overrides.has_torch_function_unary
    torch._dynamo.variables.builder._dataclasses_fields_lambda
    torch._C._are_functorch_transforms_active
    torch._C._log_api_usage_once torch._C._get_tracing_state torch._C._is_tracing
    torch.fx.experimental.symbolic_shapes.has_free_unbacked_symbols
    torch.broadcast_shapes torch.promote_types torch.result_type torch.can_cast
    torch.finfo torch.iinfo torch.Size torch.device torch.dtype
    torch._functorch.predispatch.lazy_load_decompositions
    torch._C._push_on_torch_function_stack torch._C._pop_torch_function_stack
    torch.utils._pytree._get_node_type torch.utils._pytree.tree_is_leaf
    torch.utils._pytree.tree_map torch.utils._cxx_pytree.tree_map
    torch.distributed.distributed_c10d._get_group_size_by_name
    torch.distributed.distributed_c10d._resolve_group_name_by_ranks_and_tag
"""
"""Of torch, whose version is in the key: switches that every check compares, and questions that the
type, the size and the dtype of an argument decide, which its guard holds. A group of processes is a
condition: its name, backend and ranks."""

_FOR_LIBRARIES = """
    builtins.id sys.exc_info torch._dynamo.comptime.comptime
"""
"""What Python's own code and torch's use with no trace in a result: to know an object again, to
keep the exception that is handled, and to look at a trace while it is made."""

_TENSOR_METHODS = """
    dim size ndimension numel nelement stride is_contiguous is_floating_point is_complex is_signed
    element_size type get_device dim_order is_conj
    chunk split unbind unsafe_chunk tensor_split topk sort max min
    __setitem__ __len__ __iter__
"""
TENSOR_METHODS = frozenset(_TENSOR_METHODS.split())
"""Methods of a tensor whose answers follow from what its guard holds: type, sizes, strides."""

_TENSOR_ATTRIBUTES = """
    shape dtype device ndim layout requires_grad is_sparse is_sparse_csr is_quantized is_nested
    is_meta is_mkldnn is_cpu is_cuda is_npu is_mps is_xpu names itemsize nbytes
    real imag T mT H mH data __class__
"""
TENSOR_ATTRIBUTES = frozenset(_TENSOR_ATTRIBUTES.split())
"""Attributes of a tensor that its guard decides, or that the graph computes."""

PLAIN_TYPES: tuple[Any, ...] = (
    *(int, float, complex, bool, str, bytes, bytearray, type(None), type(Ellipsis)),
    *(list, tuple, dict, set, frozenset, range, slice, torch.Size),
    *(collections.OrderedDict, collections.defaultdict, collections.deque),
    *(type({}.keys()), type({}.values()), type({}.items()), types.MappingProxyType),
    *(enumerate, zip, map, filter, reversed),
)
"""Types of Python's own whose methods ask the object and the arguments alone."""


@functools.cache
def _pure() -> dict[int, Any]:
    """The listed functions by their `id`; the values keep them alive."""
    listed: list[Any] = []
    for name in _MODULES:
        module = importlib.import_module(name)
        members = vars(module).values()
        listed += [m for m in members if callable(m) and getattr(m, "__module__", "") == name]
    listed += _find(f"builtins.{name}" for name in _BUILTINS.split())
    listed += _find((*_STANDARD.split(), *_TORCH.split()))
    listed.append(types.GeneratorType.__iter__)  # gives the generator itself
    if "contiguous" in torch.nn.MultiheadAttention.forward.__code__.co_names:
        # Before torch 2.12 what is traced has other strides than what the fast kernel gives.
        listed.append(torch.nn.modules.activation._is_make_fx_tracing)
    return {id(each): each for each in listed}


@functools.cache
def _of_constants() -> dict[int, Any]:
    return {id(each): each for each in _find(_OF_CONSTANTS.split())}


@functools.cache
def _for_libraries() -> dict[int, Any]:
    return {id(each): each for each in _find(_FOR_LIBRARIES.split())}


def _find(names: Iterable[str]) -> Iterator[Any]:
    for name in names:
        module, _, attribute = name.rpartition(".")
        try:
            yield getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):
            continue  # not in this version


def is_for_libraries(function: object) -> bool:
    """Whether code of Python's own and of torch's may call a function that is not pure."""
    return id(function) in _for_libraries()


def is_pure_of_constants(function: object) -> bool:
    """Whether a function is pure if its arguments are tensors and plain constants."""
    return id(function) in _of_constants()


def is_pure(function: object) -> bool:
    """Whether the arguments alone decide what the function gives."""
    if id(function) in _pure():
        return True
    if isinstance(function, type) and issubclass(function, BaseException):
        return function.__module__ == "builtins"
    kind = type(function)
    if kind.__name__ == "ufunc" and kind.__module__ == "numpy":  # its identity holds the version
        return True
    owner = getattr(function, "__objclass__", None)
    if owner is None:
        owner = getattr(function, "__self__", None)
        owner = owner if isinstance(owner, type) else type(owner)
    if not isinstance(function, _METHODS):
        return False
    if function.__name__ in _OF_ADDRESS and owner in (object, type):
        return False
    if function.__name__ in ("__new__", "__init__") and id(owner) in _pure():
        return True
    if owner is _TENSOR_IN_C:
        return function.__name__ in TENSOR_METHODS
    if issubclass(owner, BaseException):
        return function.__name__ in ("__new__", "__init__")
    return any(owner is plain for plain in (*PLAIN_TYPES, object, type))


_OF_ADDRESS = frozenset({"__sizeof__", "__dir__", "__reduce__"})
"""Methods of every object that say something about this process or about all of its classes."""
_TENSOR_IN_C = torch.Tensor.__base__
_METHODS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.BuiltinMethodType,
    types.ClassMethodDescriptorType,
)
