"""What Dynamo tells of the lines at which it ends a graph, and how it takes its own errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch._dynamo.config as dynamo_config
from torch._dynamo.utils import graph_break_reasons

if TYPE_CHECKING:
    import traceback
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager


def errors_run_eagerly() -> AbstractContextManager[None]:
    """While this is entered, a frame that Dynamo or a backend can't compile runs eagerly.

    Dynamo decides before the frame runs, so nothing of it runs twice. This thread alone is meant.
    """
    entered: AbstractContextManager[None] = dynamo_config.patch(suppress_errors=True)
    return entered


def count() -> int:
    """How many graph breaks this process has met."""
    return len(graph_break_reasons)


def since(count: int) -> Iterator[tuple[str, Sequence[traceback.FrameSummary]]]:
    """What Dynamo says of each later break, and the stack there.

    Where another thread compiles meanwhile, its breaks are among them.
    """
    for reason in graph_break_reasons[count:]:
        yield str(reason.reason), tuple(reason.user_stack)
