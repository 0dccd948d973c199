"""The command `npugx-cache`. Never imports torch: looking at a cache must not take seconds."""

from __future__ import annotations

__all__ = ["main"]


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 the store is unusable, 2 wrong input."""
    import gc

    from npugx_cache.cli.commands import group

    # A command ends soon: going through a million cells for garbage takes as long as listing them.
    gc.disable()

    group.main(args, prog_name="npugx-cache")
