"""Private torch names for lowering: fake tensors and make_fx. Checked on torch 2.11 and 2.13.

Importing this module loads sympy; the hit path must not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import TracingContext, detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx


def lower(
    function: Callable[..., Any], inputs: Sequence[Any], decompositions: Mapping[Any, Any] | None
) -> fx.GraphModule:
    """Trace a function on fake copies of its inputs to a graph of aten operators.

    Not functionalised: the graph writes to its inputs where the function does. Inside a trace of
    Dynamo's the fake inputs are made as AOTAutograd makes them, under the backend's fake mode and
    with the symbolic contexts that Dynamo chose, so that both see one set of symbols.
    """
    context = TracingContext.try_get()
    mode = detect_fake_mode(inputs) or (context and context.fake_mode)
    mode = mode or FakeTensorMode(shape_env=ShapeEnv())
    known = context.tensor_to_context if context else {}
    with torch.no_grad(), mode, enable_python_dispatcher():
        fakes = [_fake(mode, value, known) for value in inputs]
        allowed = mode.allow_non_fake_inputs
        mode.allow_non_fake_inputs = True  # tensors that a graph holds as constants are real
        try:
            return make_fx(
                _flat(function),
                decomposition_table=dict(decompositions or {}),
            )(*fakes)
        finally:
            mode.allow_non_fake_inputs = allowed


def _flat(function: Callable[..., Any]) -> Callable[..., Any]:
    def flat(*inputs: Any) -> Any:  # make_fx reads the signature of what it is given
        return function(*inputs)

    return flat


def _fake(mode: FakeTensorMode, value: Any, known: Any) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    symbolic = known.get(value)
    if symbolic is None:
        return mode.from_tensor(value, static_shapes=True)
    return mode.from_tensor(value, symbolic_context=symbolic, source=symbolic.tensor_source)
