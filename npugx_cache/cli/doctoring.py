"""`npugx-cache doctor`."""

from __future__ import annotations

import click

from npugx_cache.cli import output
from npugx_cache.cli.opening import WrongInput, load_settings


def print_doctor(directory: str | None, form: str) -> str | None:
    """Examine the folder; return what is bad about it, or None."""
    from npugx_cache.store.tools.doctor import examine

    settings = load_settings(directory)
    if not settings.cache_dir.is_dir():
        raise WrongInput(f"{settings.cache_dir} is not a folder. Name one that is there")
    findings = []
    for finding in examine(settings):
        findings.append(finding)
        if form != "json":
            click.echo(f"{finding.verdict:<8} {finding.name}: {output.in_line(finding.detail)}")
    if form == "json":
        output.print_json(
            {
                "root": str(settings.cache_dir),
                "findings": [
                    {"name": each.name, "verdict": each.verdict, "detail": each.detail}
                    for each in findings
                ],
            }
        )
    bad = [finding.name for finding in findings if finding.verdict == "bad"]
    return f"not fit to be a cache: {', '.join(bad)}" if bad else None
