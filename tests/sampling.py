"""Draws a sample of the long tests: NPUGX_TEST_SAMPLE says which share, and which of them.

`8 3f2a`: one of eight; another text in the place of `3f2a` chooses others. Without the variable
everything runs. Of the soundness matrix rows are drawn, of other thorough tests whole files.
"""

import hashlib
import os

SAMPLE = os.environ.get("NPUGX_TEST_SAMPLE", "")


def is_drawn(name: str) -> bool:
    """Whether a row or a file is of the sample."""
    if not SAMPLE:
        return True
    share, _, seed = SAMPLE.partition(" ")
    drawn = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(drawn[:4], "big") % int(share) == 0
