"""Writes the stack of user code that a node of a trace comes from.

Dynamo writes all frames of the stack again for each node, and none for some nodes. A model has ten
frames of few lines, so here each line is written once. Importing this module loads the compiler.
"""

from __future__ import annotations

import traceback
from typing import Any

from torch.fx.experimental.symbolic_shapes import uninteresting_files


class StackTexts:
    """The text of each line that one trace has come to: `Recorder.state`."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Any, ...], str] = {}

    def of(self, tx: Any) -> str:
        """The text of the stack above what Dynamo interprets now, as Dynamo writes it."""
        lines = []
        while tx is not None:
            lines.append(self._line_of(tx))
            tx = getattr(tx, "parent", None)
        return "".join(reversed(lines))

    def _line_of(self, tx: Any) -> str:
        # Equal code may stand in two files.
        key = tx.f_code, tx.f_code.co_filename, tx.lineno, tx.current_instruction.positions
        if (line := self._lines.get(key)) is None:
            hidden = tx.is_co_filename_from_nn_modules()
            summary = None if hidden else tx.frame_summary()
            if summary is None or summary.filename in uninteresting_files():
                line = ""
            else:
                line = "".join(traceback.StackSummary.from_list([summary]).format())
            self._lines[key] = line
        return line
