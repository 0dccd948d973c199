"""Shows the lines of our logger on stderr, for `NPUGX_CACHE_LOG`. Loaded only if that is set."""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from npugx_cache import config
from npugx_cache.terminal import harmless

PASSING = "npugx_cache_passing"
"""An attribute of a record whose line the next line makes worthless, such as that of progress."""
_ERASED = "\r\x1b[K"
_NARROWEST = 20


def show(logger: logging.Logger, level: str) -> None:
    """Show what the logger says at this level and above, also where no logging is set up."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shown = Lines(number)
    logger.addHandler(shown)
    # Never raised: handlers of the application may want more than stderr does.
    if logger.getEffectiveLevel() > number:
        logger.setLevel(number)


class Lines(logging.Handler):
    """Writes a line for each record to stderr, but no record that the application shows itself.

    On a terminal a line that passes (`PASSING`) is written over by the next one.
    """

    def __init__(self, level: int) -> None:
        super().__init__(level)
        rank = config.rank()
        who = "npugx_cache" if rank is None else f"npugx_cache[{rank}]"
        self.setFormatter(
            logging.Formatter(f"%(asctime)s {who} %(levelname)s %(message)s", "%H:%M:%S")
        )
        self._passing = False

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr  # of this moment: programs put others in its place
        if stream is None or self._is_shown_elsewhere(record):
            return
        try:
            stream.write(self._text(record, stream))
            stream.flush()
        except Exception:  # noqa: BLE001 - as each handler of Python's does
            self.handleError(record)

    def _text(self, record: logging.LogRecord, stream: TextIO) -> str:
        line = self.format(record)
        if not stream.isatty() or config.is_dumb_terminal():
            return f"{line}\n"
        start = _ERASED if self._passing else ""
        self._passing = getattr(record, PASSING, False)
        if not self._passing:
            return f"{start}{harmless(line)}\n"
        # A line that wraps can't be erased. Its end names the phase.
        line, most = harmless(line, kept=""), _width(stream) - 1
        return f"{start}{line if len(line) <= most else f'..{line[2 - most :]}'}"

    def _is_shown_elsewhere(self, record: logging.LogRecord) -> bool:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            for handler in logger.handlers:
                takes = record.levelno >= handler.level
                if takes and handler is not self and not isinstance(handler, logging.NullHandler):
                    return True
            logger = logger.parent if logger.propagate else None
        return False


def _width(stream: TextIO) -> int:
    try:
        return max(_NARROWEST, os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        return _NARROWEST
