"""Has a trace call the operators that eager calls, where torch has a form in Python for traces.

While a graph is traced, torch's Python dispatcher takes some operators apart in Python, although
eager calls one kernel, or takes them apart in C++ in another way. The results then differ by
rounding: bilinear upsampling becomes forty operators, and `matmul` of rows with gaps becomes
several products in the place of one. The forms of `OPERATORS` step aside in a trace of ours.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import decompositions
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_AUTOGRAD = torch._C.DispatchKey.Autograd

OPERATORS = (
    *("matmul", "gru", "lstm", "rnn_relu", "rnn_tanh", "hardshrink", "softshrink"),
    *("multi_margin_loss", "multilabel_margin_loss_forward"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d"),
    *("upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
)
"""The operators of aten whose forms in Python step aside; some torch versions lack some."""

KEPT = {
    "broadcast_tensors": "gives views",
    "cudnn_batch_norm": "the schema does not say that it writes to the running statistics",
    "dropout": "`backend.dropout` does as eager does",
    "empty": "gives memory as it is",
    "istft": "calls the operators that eager calls",
    "miopen_batch_norm": "as cudnn_batch_norm",
    "native_batch_norm": "as cudnn_batch_norm",
    "one_hot": "C++ reads the data",
    "pad_sequence": "moves elements",
    "stft": "calls the operators that eager calls",
    "tensor_split": "C++ reads the data",
    "to_dense": "is about sparse tensors",
    "unsafe_chunk": "moves elements",
}
"""The operators of aten whose forms in Python stay, and why."""

_active = threading.local()


@contextlib.contextmanager
def step_aside() -> Iterator[None]:
    """In this thread, have operators run as in eager; other threads' traces keep torch's forms."""
    _wrap_forms()
    before = getattr(_active, "depth", 0)
    _active.depth = before + 1
    try:
        yield
    finally:
        _active.depth = before


@functools.cache
def _wrap_forms() -> None:
    """Wrap the forms for good: a form that comes and goes would be missed by another thread."""
    for name in OPERATORS:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            operator = getattr(packet, overload)
            kernels: dict[Any, Any] = operator.py_kernels
            is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(
                operator.name(), _COMPOSITE
            )
            run = functools.partial(_take_apart if is_composite else _call, operator)
            for key in kernels.keys() & {_COMPOSITE, _AUTOGRAD}:
                kernels[key] = _wrap(kernels[key], run)
            operator._dispatch_cache.clear()
    decompositions.should_fold = _wrap(decompositions.should_fold, _folds)


def _wrap(form: Callable[..., Any], as_in_eager: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(form)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = as_in_eager(*args, **kwargs) if getattr(_active, "depth", 0) else NotImplemented
        return form(*args, **kwargs) if given is NotImplemented else given

    return call


def _call(operator: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call an operator that has a kernel of its own below autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*args, **kwargs)


def _take_apart(operator: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Take an operator apart as eager does, in C++; C++ does not take symbolic sizes."""
    if not any(map(varies, tree_leaves((args, kwargs)))):
        return operator._op_dk(_COMPOSITE, *args, **kwargs)
    if operator._overloadname == "vec" and not kwargs:
        return _resize(operator, *args)
    return NotImplemented


def varies(value: object) -> bool:
    """Whether a value is a symbolic number, or a tensor with such sizes."""
    if isinstance(value, torch.Tensor):
        return bool(value._has_symbolic_sizes_strides)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _resize(operator: Any, image: Any, size: Any, *rest: Any) -> Any:
    """What `UpSample.h` makes of a size or factors: the operator that takes a size."""
    *corners, factors = rest
    compute_sizes: Any = decompositions.upsample_compute_output_size
    sizes = compute_sizes(image.shape, size, factors)
    scales = [None] * len(sizes) if factors is None else factors
    return operator._overloadpacket.default(image, sizes, *corners, *scales)


def _folds(tensor1: Any, tensor2: Any, is_out: bool) -> bool:
    """Whether `matmul` makes one product of many, as `should_fold` of `LinearAlgebra.cpp` says.

    torch's form asks whether the larger tensor has no gaps at all; C++ asks this of its rows alone.
    """
    is_first = tensor1.dim() >= tensor2.dim()
    larger, other = (tensor1, tensor2) if is_first else (tensor2, tensor1)
    if larger.dim() < 3 or other.dim() > 2:
        return False
    if other.requires_grad and not is_out:
        return True
    if tensor1.dim() == 2:
        return False
    if guard_or_false(larger.numel() == 0):
        return True
    larger = larger if is_first else larger.mT
    sizes, strides = larger.shape, larger.stride()
    return all(
        guard_or_false(strides[at] == strides[at + 1] * sizes[at + 1])
        for at in range(larger.dim() - 2)
    )
