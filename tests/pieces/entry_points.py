"""Makes a folder in which this package has the entry points of pyproject.toml, as if installed."""

from __future__ import annotations

import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def install(site: Path) -> Path:
    """Write the distribution's folder in `site`, and return the folder."""
    groups = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]
    installed = site / "npugx_cache-0.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: npugx_cache\nVersion: 0.0\n")
    (installed / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in rows.items())
            for group, rows in groups.items()
        )
    )
    return installed
