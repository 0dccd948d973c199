"""Tells torch's log of recompiles (`TORCH_LOGS=recompiles`) what we compile once more."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable

_ARTIFACTS = ("recompiles_verbose", "recompiles")  # torch writes to the first one that is wanted
# The lines of a logger outside of torch's would meet none of torch's handlers.
_MODULE = "torch._dynamo.guards"


def wanted() -> logging.Logger | None:
    """The log of recompiles, if it is switched on."""
    logs: Any = torch._logging
    for artifact in _ARTIFACTS:
        log: logging.Logger = logs.getArtifactLogger(_MODULE, artifact)
        # Of its own: `TORCH_LOGS=+dynamo` lets lines through that are no part of what was asked.
        if log.level == logging.DEBUG:
            return log
    return None


def tell(log: logging.Logger, code: types.CodeType, failures: Iterable[str]) -> None:
    """Log in torch's words that a function is compiled again, and what did not hold."""
    log.debug(
        "Recompiling function %s in %s:%d\n    triggered by the following guard failure(s):\n%s",
        code.co_name,
        code.co_filename,
        code.co_firstlineno,
        "\n".join(f"    - {failure}" for failure in failures),
    )
