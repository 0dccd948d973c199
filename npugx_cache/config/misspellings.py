"""Names environment variables that look like ours and are none: a typing mistake changes nothing.

Loaded only where there is one.
"""

from __future__ import annotations

import difflib

from npugx_cache import config
from npugx_cache.terminal import harmless

_SIMILAR = 0.8


def sentences() -> dict[str, str]:
    """A sentence for each unknown variable of the environment, with the one that may be meant."""
    return {name: _sentence(name) for name in config.unknown_variables()}


def _sentence(name: str) -> str:
    similar = difflib.get_close_matches(name, config.VARIABLES, n=1, cutoff=_SIMILAR)
    meant = f"; did you mean {similar[0]}?" if similar else ""
    return f"{harmless(name, kept='')} is no setting of this release{meant}"
