"""The record beside a stored refusal: the pieces that a function with graph breaks runs in.

A piece follows from its graph alone and names no function, so the link is kept here. Does not
import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from npugx_cache.store.format.plain import Plain

_MOST = 256


class BreakRecord(NamedTuple):
    """`pieces` are entries in the order in which they were first used, `breaks` are sentences."""

    pieces: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: Any) -> BreakRecord:
        """What a stored record says; nothing for one of another form."""
        match record:
            case {"pieces": list(pieces), "breaks": list(breaks)} if all(
                isinstance(each, str) for each in (*pieces, *breaks)
            ):
                return cls(tuple(pieces), tuple(breaks))
        return cls()

    def plain(self) -> Plain:
        return {"pieces": [*self.pieces[-_MOST:]], "breaks": [*self.breaks[:_MOST]]}
