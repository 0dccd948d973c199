"""What becomes of an LSTM in a trace, where that is not what eager runs.

Seen on torch 2.11 and 2.13. Importing this module imports nothing of the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npugx_cache._compat.runtime import BFLOAT16_ON_CPU, onednn_runs_bfloat16, torch_version

if TYPE_CHECKING:
    from collections.abc import Iterator


def _layers(lowered: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """One operator of oneDNN's for each layer, where the trace did not take the LSTM apart."""
    return (node for node in lowered.graph.nodes if "mkldnn_rnn_layer" in str(node.target))


def questions(lowered: torch.fx.GraphModule | None) -> set[str]:
    """What a process must answer as this one does: the trace chose layers without asking the CPU.

    A CPU that lacks the instructions raises where eager takes the LSTM apart.
    """
    layers = _layers(lowered) if lowered is not None else ()
    return {BFLOAT16_ON_CPU for layer in layers if _is_of_bfloat16(layer)}


def unsupported(lowered: torch.fx.GraphModule) -> torch.fx.Node | None:
    """A layer that oneDNN can't run on this CPU."""
    layer = next(filter(_is_of_bfloat16, _layers(lowered)), None)
    return None if layer is None or onednn_runs_bfloat16() else layer


def _is_of_bfloat16(layer: torch.fx.Node) -> bool:
    given = layer.args[0]
    return isinstance(given, torch.fx.Node) and given.meta["val"].dtype is torch.bfloat16


def wrong(called: torch.fx.GraphModule, lowered: torch.fx.GraphModule) -> torch.fx.Node | None:
    """A call of an LSTM whose last state got a dimension too many when it was taken apart.

    It does before torch 2.13 where there is no operator for a layer, as with float16 on a CPU.
    """
    if torch_version() >= (2, 13) or any(True for _ in _layers(lowered)):
        return None
    names = ((node, getattr(node.target, "__name__", "")) for node in called.graph.nodes)
    return next((node for node, name in names if name == "lstm"), None)
