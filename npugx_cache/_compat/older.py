"""What torch traces otherwise than eager does it, most of it before 2.13. Seen on torch 2.11."""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING, Any

from npugx_cache._compat.runtime import torch_version

if TYPE_CHECKING:
    import types

    import torch

_OLDER = torch_version() < (2, 13)

SETTINGS: dict[str, object] = {"specialize_float": True} if _OLDER else {}
"""Dynamo's settings besides. A float that changes would become a tensor, whose guard has no form
that another process can check."""


def starred_assignment(code: types.CodeType) -> int | None:
    """The line of `first, *rest = ...`, in which `rest` becomes a tuple."""
    found = (i for i in dis.get_instructions(code) if _OLDER and i.opname == "UNPACK_EX")
    for each in found:
        return (each.positions.lineno if each.positions else None) or code.co_firstlineno
    return None


def unsupported_lstm(lowered: torch.fx.GraphModule) -> torch.fx.Node | None:
    """A layer of an LSTM that oneDNN can't run on this CPU; eager takes it apart there.

    The choice is made on fake tensors, without a look at the CPU. Seen on torch 2.13.
    """
    for node in lowered.graph.nodes:
        if "mkldnn_rnn_layer" in str(node.target):
            dtype = str(node.args[0].meta["val"].dtype).removeprefix("torch.")
            asks = {"bfloat16": "_is_mkldnn_bf16_supported", "float16": "_is_mkldnn_fp16_supported"}
            if dtype in asks and not getattr(_mkldnn(), asks[dtype])():
                return node  # type: ignore[no-any-return]
    return None


def _mkldnn() -> Any:
    import torch

    return torch.ops.mkldnn


def wrong_lstm(called: torch.fx.GraphModule, lowered: torch.fx.GraphModule) -> torch.fx.Node | None:
    """A call of an LSTM whose last state got a dimension too many when it was taken apart.

    It does where there is no operator for a layer, as with 16 bits on a CPU.
    """
    if not _OLDER or any("mkldnn_rnn_layer" in str(node.target) for node in lowered.graph.nodes):
        return None
    names = ((node, getattr(node.target, "__name__", "")) for node in called.graph.nodes)
    return next((node for node, name in names if name == "lstm"), None)
