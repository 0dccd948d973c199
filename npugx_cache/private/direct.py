"""Fast path for calls of operators: torch's own C functions in the place of `OpOverload`.

`OpOverload.__call__` is a Python function around a call that finds a kernel through a stack of
boxed values. The C functions behind `torch.mul` and `Tensor.view` parse their arguments in
generated C++ and call the same kernel, which halves the cost of a small operator. We take them from
`torch._C`, where nobody monkey-patches them, and only for operators with exactly the same arguments
(`tests/backend/test_direct.py` compares them).

Factory functions are left out, because `torch.arange` obeys `with torch.device(...)`, while the
traced `aten.arange` does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import _ops

if TYPE_CHECKING:
    from collections.abc import Callable

_C: Any = torch._C
_PLACES = {
    _C._VariableFunctions: (
        "_scaled_dot_product_efficient_attention.default",
        "_scaled_dot_product_flash_attention.default",
        "_scaled_dot_product_flash_attention_for_cpu.default",
        "_softmax.default",
        "abs.default",
        "add.Tensor",
        "addmm.default",
        "baddbmm.default",
        "bmm.default",
        "cat.default",
        "clone.default",
        "cos.default",
        "cos_.default",
        "div.Tensor",
        "embedding.default",
        "exp.default",
        "exp_.default",
        "index_select.default",
        "mean.dim",
        "mm.default",
        "mul.Tensor",
        "native_group_norm.default",
        "native_layer_norm.default",
        "neg.default",
        "neg_.default",
        "permute.default",
        "pow.Tensor_Scalar",
        "reciprocal.default",
        "relu.default",
        "relu_.default",
        "rsqrt.default",
        "rsqrt_.default",
        "select.int",
        "sigmoid.default",
        "sigmoid_.default",
        "sin.default",
        "sin_.default",
        "sqrt.default",
        "sqrt_.default",
        "squeeze.dim",
        "sub.Tensor",
        "sum.dim_IntList",
        "t.default",
        "tanh.default",
        "tanh_.default",
        "transpose.int",
        "unsqueeze.default",
    ),
    _C._nn: (
        *("gelu.default", "gelu_.default", "linear.default", "silu.default", "silu_.default"),
    ),
    _C.TensorBase: (
        "add_.Tensor",
        "copy_.default",
        "div_.Tensor",
        "expand.default",
        "index_copy_.default",
        "mul_.Tensor",
        "sub_.Tensor",
        "view.default",
    ),
}

DIRECT: dict[str, Callable[..., Any]] = {
    operator: getattr(place, operator.partition(".")[0])
    for place, operators in _PLACES.items()
    for operator in operators
    if hasattr(place, operator.partition(".")[0])
}
"""The C functions by aten's `name.overload`. Arguments may be given by position or by name."""


def call_of(target: Any) -> Callable[..., Any]:
    """What to call for a target of a node: the C function, or else the overload's own `_op`.

    Anything but an `OpOverload` is returned as it is.
    """
    if type(target) is not _ops.OpOverload:
        return target  # type: ignore[no-any-return]
    namespace, _, name = target._schema.name.partition("::")
    direct = DIRECT.get(f"{name}.{target._overloadname}") if namespace == "aten" else None
    return direct or target._op
