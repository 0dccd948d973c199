"""`npugx-cache prune`."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import click

from npugx_cache.cli import output
from npugx_cache.cli.opening import WrongInput, load_settings, open_existing
from npugx_cache.store import PruneReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npugx_cache.store import FolderStore, PrunePolicy

_LONG = 200  # a prune of fewer entries is over before a progress bar could be read
_NAMED = 20


def print_prune(
    directory: str | None,
    form: str,
    *,
    policy: PrunePolicy,
    dry_run: bool,
    asked: bool,
) -> str | None:
    """Prune and report; return why it is incomplete, or None.

    `asked`: the user has confirmed already (`--yes`) that every entry may go.
    """
    # A dry run opens the store read-only, because it must also work where nothing can be written.
    store = open_existing(directory, "readonly" if dry_run else "on")
    report = PruneReport(dry_run=dry_run)
    if store is not None:
        if policy.everything and not dry_run and not asked:
            _ask(store)
        with _progress() as progress:
            report = store.prune(policy, dry_run=dry_run, progress=progress)
    root = load_settings(directory).cache_dir if store is None else store.root
    if form == "json":
        output.print_json(_as_json(report))
    else:
        _print_text(report, str(root))
    return None if report.stopped is None else f"incomplete: {report.stopped}"


def _ask(store: FolderStore) -> None:
    """Ask on the terminal whether every entry may go; without a terminal, raise WrongInput."""
    overview, _ = store.overview()
    entries = overview.columns.count + len(overview.refused)
    what = (
        f"{output.count(entries, 'entry', 'entries')}, {output.size(overview.size)}, "
        f"in {output.in_line(str(store.root))}"
    )
    if not sys.stdin.isatty():
        raise WrongInput(
            f"--all would remove {what}, and there is no terminal to ask on. "
            "Add --yes to remove them, or --dry-run to see which"
        )
    # On stderr: stdout may be JSON for a program.
    click.confirm(f"Remove {what}?", abort=True, err=True)


def _print_text(report: PruneReport, root: str) -> None:
    verb = "would remove" if report.dry_run else "removed"
    for gone in report.removed[:_NAMED]:
        click.echo(f"{verb} {gone.entry[:12]}  {output.in_line(gone.function) or '?'}")
    if len(report.removed) > _NAMED:
        click.echo(f"{verb} {len(report.removed) - _NAMED} more (all of them with --format json)")
    for name in report.old_formats:
        click.echo(f"{verb} the entries of an older release ({name})")
    freed = "would free" if report.dry_run else "freed"
    click.echo(
        f"{verb} {output.count(report.entries, 'entry', 'entries')} and "
        f"{output.count(report.blobs, 'blob', 'blobs')}, "
        f"{freed} {output.size(report.freed_bytes)}; left in {output.in_line(root)}: "
        f"{output.count(report.kept_entries, 'entry', 'entries')}, "
        f"{output.size(report.kept_bytes)}"
    )


def _as_json(report: PruneReport) -> dict[str, object]:
    return {
        "dry_run": report.dry_run,
        "entries": report.entries,
        "blobs": report.blobs,
        "freed_bytes": report.freed_bytes,
        "kept_entries": report.kept_entries,
        "kept_bytes": report.kept_bytes,
        "swept": report.swept,
        "removed": [gone._asdict() for gone in report.removed],
        "old_formats": list(report.old_formats),
        "stopped": report.stopped,
    }


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on a terminal, once a prune turns out to be a long one."""
    if not sys.stderr.isatty():
        yield None
        return
    with contextlib.ExitStack() as stack:
        bars: list[Callable[[int], None]] = []

        def advance(_done: int, total: int) -> None:
            if total < _LONG:
                return
            if not bars:
                bar = stack.enter_context(
                    click.progressbar(length=total, label="pruning", file=sys.stderr)
                )
                bars.append(bar.update)
            bars[0](1)

        yield advance
