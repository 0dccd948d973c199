"""What becomes of an LSTM in a trace, where that is not what eager runs.

The trace chooses without asking the CPU: an operator of oneDNN's for each layer of float32 and
bfloat16, and for float16 many small ones. Eager asks: a CPU that can't run bfloat16 raises in the
operator, and one that can run float16 rounds otherwise. Seen on torch 2.13. Importing this
module imports nothing of the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

_LSTM = torch._VF.lstm
_QUESTIONS = {
    torch.bfloat16: runtime.BFLOAT16_ON_CPU,
    torch.float16: runtime.FLOAT16_ON_CPU,
}


def _calls(called: torch.fx.GraphModule | None) -> Iterator[torch.fx.Node]:
    """The calls of LSTMs in Dynamo's graph; not of an operator of the user's with that name."""
    nodes = called.graph.nodes if called is not None else ()
    return (node for node in nodes if node.target is _LSTM)


def _asked_of_the_cpu(called: torch.fx.GraphModule | None) -> Iterator[tuple[str, torch.fx.Node]]:
    for call in _calls(called):
        given = call.all_input_nodes[0].meta["example_value"]
        if given.device.type == "cpu" and given.dtype in _QUESTIONS:
            yield _QUESTIONS[given.dtype], call


def questions(called: torch.fx.GraphModule | None) -> set[str]:
    """What a process must answer as this one does."""
    return {question for question, _ in _asked_of_the_cpu(called)}


def otherwise(called: torch.fx.GraphModule) -> torch.fx.Node | None:
    """A call of an LSTM that eager runs otherwise on this CPU."""
    for question, call in _asked_of_the_cpu(called) if runtime.mkldnn_enabled() else ():
        is_traced_as_one = question == runtime.BFLOAT16_ON_CPU
        if runtime.ONEDNN_RUNS[question]() != is_traced_as_one:
            return call
    return None
