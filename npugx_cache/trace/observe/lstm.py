"""Notes what an LSTM of 16 bits asked the CPU, and finds those that a trace would take otherwise.

Eager asks the CPU whether oneDNN runs such an LSTM as one operator. A trace asks as well
(`private.python_forms`), so another process must get the same answer. But where sizes vary, torch's
form for traces does not ask: it takes one operator of oneDNN for each layer of bfloat16, and many
small operators for float16. If the CPU can't run bfloat16, the traced operator raises; if the CPU
can run float16, eager rounds differently.

The small operators of torch before 2.13 also give the last states one dimension too many, which
`mend_states` takes away.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import decompositions

from npugx_cache.backend import subgraphs
from npugx_cache.private import python_forms, runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LSTM = torch._VF.lstm
_QUESTIONS = {
    torch.bfloat16: runtime.BFLOAT16_ON_CPU,
    torch.float16: runtime.FLOAT16_ON_CPU,
}


def mend_states() -> None:
    """Have torch's decomposition of an LSTM give states of two dimensions, as the LSTM has them.

    Before torch 2.13 it keeps a dimension of length 1, unless the batch has one row. The mended one
    stays for the process: a compile of torch's own gets right states too.
    """
    layer = decompositions.one_layer_lstm
    if not hasattr(layer, "__wrapped__"):
        decompositions.one_layer_lstm = _with_flat_states(layer)


def _with_flat_states(layer: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(layer)
    def one_layer(*args: Any, **kwargs: Any) -> Any:
        out, states = layer(*args, **kwargs)
        return out, tuple(each.squeeze(0) if each.dim() == 3 else each for each in states)

    return one_layer


def _calls(called: torch.fx.GraphModule | None) -> Iterator[torch.fx.Node]:
    """The calls of `torch._VF.lstm` in Dynamo's graph, but not of a user's operator `lstm`."""
    return (node for node in subgraphs.nodes_of(called) if node.target is _LSTM)


def _asked_of_the_cpu(called: torch.fx.GraphModule | None) -> Iterator[tuple[str, torch.fx.Node]]:
    for call in _calls(called):
        given = call.all_input_nodes[0].meta["example_value"]
        if given.device.type == "cpu" and given.dtype in _QUESTIONS:
            yield _QUESTIONS[given.dtype], call


def questions(called: torch.fx.GraphModule | None) -> set[str]:
    """The questions that another process must answer in the same way to run this graph."""
    return {question for question, _ in _asked_of_the_cpu(called)}


def otherwise(called: torch.fx.GraphModule) -> torch.fx.Node | None:
    """The first call of an LSTM that eager runs by other operators on this CPU, or None."""
    for question, call in _asked_of_the_cpu(called) if runtime.mkldnn_enabled() else ():
        is_traced_as_one = question == runtime.BFLOAT16_ON_CPU
        values = [each.meta["example_value"] for each in call.all_input_nodes]
        if any(map(python_forms.varies, values)) and (
            runtime.ONEDNN_RUNS[question]() != is_traced_as_one
        ):
            return call
    return None
