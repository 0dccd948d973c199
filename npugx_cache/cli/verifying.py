"""`npugx-cache verify`."""

from __future__ import annotations

import click

from npugx_cache.cli import output
from npugx_cache.cli.opening import load_settings, open_existing
from npugx_cache.store.tools.audit import VerifyReport, verify


def print_verify(directory: str | None, form: str, *, repair: bool) -> str | None:
    """Verify and report; return what is still bad, or None."""
    store = open_existing(directory, "on" if repair else "readonly")
    report = VerifyReport()
    if store is not None:
        folder = store.folder if repair else store.folder.look_only("verify changes nothing")
        report = verify(folder, repair=repair)
    root = load_settings(directory).cache_dir if store is None else store.root
    if form == "json":
        output.print_json(_as_json(report))
    else:
        _print_text(report, str(root))
    left = sum(not bad.repaired for bad in report.bad)
    if not left:
        return None
    hint = "" if repair else "; --repair moves them to quarantine"
    return f"{output.count(left, 'bad file', 'bad files')}{hint}"


def _print_text(report: VerifyReport, root: str) -> None:
    for bad in report.bad:
        verb = "moved to quarantine" if bad.repaired else "bad"
        click.echo(f"{verb}: {output.in_line(bad.path)}: {output.in_line(bad.reason)}")
    click.echo(
        f"verified {output.count(report.entries, 'entry', 'entries')} and "
        f"{output.count(report.blobs, 'blob', 'blobs')}, {output.size(report.size)}, in "
        f"{output.in_line(root)}: {len(report.bad)} bad"
    )


def _as_json(report: VerifyReport) -> dict[str, object]:
    return {
        "entries": report.entries,
        "blobs": report.blobs,
        "bytes": report.size,
        "bad": [
            {"path": bad.path, "reason": bad.reason, "repaired": bad.repaired} for bad in report.bad
        ],
    }
