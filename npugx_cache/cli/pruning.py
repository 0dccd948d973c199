"""`npugx-cache prune` and `npugx-cache rm`."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import click

from npugx_cache.cli import output, remote
from npugx_cache.cli.filters import select_entries
from npugx_cache.cli.naming import entries_named
from npugx_cache.cli.opening import WrongInput, load_settings, open_existing
from npugx_cache.store import PrunePolicy, PruneReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from npugx_cache.cli.filters import Considered, Test
    from npugx_cache.store import FolderStore

_LONG = 200  # a prune of fewer entries is over before a progress bar could be read
_NAMED = 20


def print_prune(
    directory: str | None,
    form: str,
    *,
    policy: PrunePolicy,
    tests: Sequence[Test],
    dry_run: bool,
    asked: bool,
) -> str | None:
    """Prune and report; return why it is incomplete, or None.

    With `tests`, the entries that pass all of them go, and no other. `asked`: the user has
    confirmed already (`--yes`) that the entries may go.
    """
    store = _open_store(directory, dry_run=dry_run)
    if store is not None and tests:
        overview, uses = store.overview()
        entries = overview.columns.texts("entry")
        chosen = select_entries(store, overview, uses, tests)
        policy = PrunePolicy(entries=frozenset(entries[at] for at in chosen))
    return _remove(store, directory, form, policy, dry_run=dry_run, asked=asked)


def print_removal(
    names: Sequence[str], directory: str | None, form: str, *, dry_run: bool, asked: bool
) -> str | None:
    """Remove the entries with these names and report; return why it is incomplete, or None.

    Removes nothing if one of the names means no entry, or several.
    """
    store = _open_store(directory, dry_run=dry_run)
    if store is None:
        raise WrongInput("there is no cache yet. Name another one with --dir")
    overview, _ = store.overview()
    policy = PrunePolicy(entries=frozenset(entries_named(names, overview)))
    return _remove(store, directory, form, policy, dry_run=dry_run, asked=asked)


def only_stale() -> Test:
    """The test that a worker with this interpreter can't use an entry; raises WrongInput."""
    from npugx_cache.cli.versions import installed_torch, is_stale, of_a_worker

    torch = installed_torch()
    if torch is None:
        raise WrongInput(
            f"--stale compares entries with the torch of {sys.executable}, and there is none. "
            "Run npugx-cache with the Python of the workers"
        )
    worker = of_a_worker(torch)

    def test(item: Considered) -> bool:
        manifest = item.manifest
        return manifest is not None and is_stale(manifest.kind, manifest.factors, worker)

    return test


def _open_store(directory: str | None, *, dry_run: bool) -> FolderStore | None:
    # A dry run opens the store read-only, because it must also work where nothing can be written.
    return open_existing(directory, "readonly" if dry_run else "on")


def _remove(
    store: FolderStore | None,
    directory: str | None,
    form: str,
    policy: PrunePolicy,
    *,
    dry_run: bool,
    asked: bool,
) -> str | None:
    report = PruneReport(dry_run=dry_run)
    if store is not None:
        if not dry_run and not asked:
            _ask(store, policy)
        with _progress() as progress:
            report = store.prune(policy, dry_run=dry_run, progress=progress)
    settings = load_settings(directory)
    if form == "json":
        output.print_json({**_as_json(report), "remote": remote.shown_address(settings)})
    else:
        _print_text(report, str(settings.cache_dir if store is None else store.root))
        remote.say(settings, remote.NOT_PRUNED)
    if report.stopped is not None:
        return f"incomplete: {report.stopped}"
    left = 0 if policy.entries is None else len(policy.entries) - report.entries
    if left <= 0:
        return None
    return f"{output.count(left, 'entry', 'entries')} stayed: used or stored again meanwhile"


def _ask(store: FolderStore, policy: PrunePolicy) -> None:
    """Ask on the terminal whether the entries may go; without a terminal, raise WrongInput.

    Asks nothing for a limit, such as an age, because a job without a terminal keeps to limits, and
    nothing if no entry would go.
    """
    if not policy.everything and policy.entries is None:
        return
    if policy.everything:
        overview, _ = store.overview()
        entries, size = overview.columns.count + len(overview.refused), overview.size
    else:
        plan = store.prune(policy, dry_run=True)
        entries, size = plan.entries, plan.freed_bytes
        if not entries:
            return
    what = (
        f"{output.count(entries, 'entry', 'entries')}, {output.size(size)}, "
        f"in {output.in_line(str(store.root))}"
    )
    if not sys.stdin.isatty():
        raise WrongInput(
            f"this would remove {what}, and there is no terminal to ask on. "
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
