"""A program that PyInstaller makes holds what the package imports by name and reads as data."""

from __future__ import annotations

import importlib
import runpy
import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "npugx_cache"


@pytest.fixture
def hook():
    """The file that PyInstaller finds by the entry point."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["pyinstaller40"]["hook-dirs"].partition(":")
    (folder,) = getattr(importlib.import_module(module), name)()
    return Path(folder) / "hook-npugx_cache.py"


def test_pyinstaller_finds_the_hook(hook):
    assert hook.is_file()


@pytest.mark.thorough
def test_the_hook_brings_modules_and_data(hook):
    pytest.importorskip("PyInstaller", reason="pip install pyinstaller")
    brought = runpy.run_path(str(hook))
    modules = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in [*PACKAGE.glob("*/engines/*.py"), *PACKAGE.glob("*/capture/*.py")]
        if path.stem != "__init__"
    }
    assert "npugx_cache.backend.engines.npugraph_ex" in modules
    assert modules <= {*brought["hiddenimports"]}
    # The package's other files are none, but its metadata says which version it is.
    assert any("npugx_cache" in str(path) for path, _ in brought["datas"])
