"""Imports that a function makes itself, in a process that restores its graph before the first call.

The graph was traced in a process that had made the import by then. Without the import no condition
on what is in the module can be asked, so that each start would compile the graph again.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.events import logger
from npugx_cache.interpreter.interruptions import let_through

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npugx_cache.conditions.check import Checker
    from npugx_cache.conditions.evaluate import Scope


class Import(NamedTuple):
    """A module that a call imports, before it comes to anything else that a graph relies on."""

    name: str

    def perform(self) -> None:
        """Import the module. Raises nothing: the function may handle what an import raises."""
        try:
            importlib.import_module(self.name)
        except Exception as error:  # noqa: BLE001 - a module of the user's raises anything
            let_through(error)
            logger.debug("the import of %s raises %r", self.name, error)
        if self.name not in sys.modules:
            _failed.add(self.name)


_failed: set[str] = set()
"""Modules that can't be imported, or are not there afterwards: the function itself tries again."""


def due(refused: Iterable[Checker], scope: Scope) -> Import | None:
    """The import that a call makes itself next, if one of these graphs waits for nothing else."""
    for each in refused:
        name = each.missing_import(scope)
        if name is not None and name not in _failed:
            return Import(name)
    return None
