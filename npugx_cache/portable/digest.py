"""Hashes a sequence of texts to one name."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def digest(parts: Iterable[str]) -> str:
    """SHA-256 of texts, as hex digits. The length of each text is hashed before the text.

    Otherwise ("ab", "c") and ("a", "bc") would have the same digest.
    """
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode()
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)
    return whole.hexdigest()
