"""Graph passes: each rewrites an aten graph in place.

The graphs are not functionalised: an operator may write to its inputs, and values may be views of
each other. A pass must keep every write, and every aliasing that a caller could observe
(`aliasing`).

Passes leave the graphs inside a graph, such as the branches of `torch.cond`, as they were traced. A
call that runs them has unknown effects (`effects`): it may read and write all memory that the graph
did not allocate, and what it is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import fx


class Pass(Protocol):
    """Changes a graph in place; returns the number of rewrites."""

    def __call__(self, graph: fx.Graph) -> int: ...
