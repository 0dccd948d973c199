"""The command `npugx-cache`. It never imports torch, because that would take seconds."""

from __future__ import annotations

__all__ = ["main"]


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 the store failed or is bad, 2 wrong input."""
    import gc
    import signal

    from npugx_cache.cli.commands import group

    # A command ends soon, and to search a million table cells for garbage would double its time.
    gc.disable()
    # By default Python would end at once, and leave the processes and temporary files of a command.
    signal.signal(signal.SIGTERM, _end)
    group.main(args, prog_name="npugx-cache")


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)
