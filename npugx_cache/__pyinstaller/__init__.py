"""Tells PyInstaller, which looks for this by an entry point, where the hook of this package is."""

from __future__ import annotations

from pathlib import Path


def hook_folders() -> list[str]:
    return [str(Path(__file__).parent)]
