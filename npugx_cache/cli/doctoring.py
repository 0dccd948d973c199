"""`npugx-cache doctor`."""

from __future__ import annotations

import platform
import sys
from itertools import chain
from pathlib import Path

import click

from npugx_cache import version
from npugx_cache.cli import engines, output, settings, versions
from npugx_cache.cli.opening import WrongInput, load_settings
from npugx_cache.config import misspellings


def print_doctor(directory: str | None, form: str) -> str | None:
    """Examine the folder; return what is bad about it, or None.

    What is printed first is what the answer to a bug report needs: folder, versions and settings.
    """
    from npugx_cache.cli.bytecode import examine_bytecode
    from npugx_cache.store.remote.probe import examine_remote
    from npugx_cache.store.tools.doctor import examine

    chosen = load_settings(directory)
    if not chosen.cache_dir.is_dir():
        raise WrongInput(f"{chosen.cache_dir} is not a folder. Name one that is there")
    in_force, unknown = settings.settings_in_force(directory), misspellings.sentences()
    found = _versions()
    unserved = versions.unserved_versions(untested_torch=chosen.untested_torch)
    installed = engines.installed_engines()
    if form != "json":
        origin = settings.folder_origin(directory)
        _line("folder", f"{chosen.cache_dir} (set by {origin})")
        shown = {name: version or "not installed" for name, version in found.items()}
        for name, text in {**shown, **{each.engine: str(each) for each in installed}}.items():
            _line(name, text)
        for reason in unserved.values():
            _line("not served", reason)
        for row in in_force:
            if row.origin != settings.DEFAULT and row.variable != "NPUGX_CACHE_DIR":
                _line("setting", f"{row.variable}={row.text} (set by {row.origin})")
        settings.warn_of_unknown(unknown)
    findings = []
    package = Path(version.__file__).parent
    for finding in chain([examine_bytecode(package)], examine(chosen), examine_remote(chosen)):
        findings.append(finding)
        if form != "json":
            click.echo(f"{finding.verdict:<11} {finding.name}: {output.in_line(finding.detail)}")
    if form == "json":
        output.print_json(
            {
                "root": str(chosen.cache_dir),
                "versions": found,
                "unserved": unserved,
                "engines": [each._asdict() for each in installed],
                "settings": settings.as_json(in_force),
                "unknown": sorted(unknown),
                "findings": [
                    {"name": each.name, "verdict": each.verdict, "detail": each.detail}
                    for each in findings
                ],
            }
        )
    bad = [finding.name for finding in findings if finding.verdict == "bad"]
    return f"not fit to be a cache: {', '.join(bad)}" if bad else None


def _versions() -> dict[str, str | None]:
    torch = versions.installed_torch()
    return {
        "npugx_cache": version.VERSION,
        "python": f"{platform.python_version()} ({sys.executable})",
        "torch": None if torch is None else torch.version,
        "torch_npu": versions.installed_torch_npu(),
    }


def _line(name: str, text: str) -> None:
    click.echo(f"{name:<11} {output.in_line(text)}")
