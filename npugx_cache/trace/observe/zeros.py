"""Makes a float that is zero a constant of a trace, also where Dynamo would let the float vary.

Dynamo computes with floats that vary by sympy, which has one zero. Where the code asks for the
value (`math.copysign(1.0, x)`, a text, a key), it would get 0.0 for -0.0, and the condition on the
value would hold for both. A constant keeps its sign, and so does the condition on a constant.
Importing this module loads the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch._dynamo.config as dynamo_config

from npugx_cache.trace.observe import observation

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder


@observation.around
def make_zero_constant(
    recorder: Recorder, wrap: Callable[..., Any], builder: Any, value: float
) -> Any:
    del recorder
    if value != 0:
        return wrap(builder, value)
    with dynamo_config.patch(specialize_float=True):
        return wrap(builder, value)
