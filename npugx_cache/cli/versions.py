"""The versions that a worker with this interpreter would use, read from files.

torch is not imported, because that takes seconds.
"""

from __future__ import annotations

import ast
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from npugx_cache import version
from npugx_cache.version import FORMAT, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable


class Torch(NamedTuple):
    """A torch that is installed: its version as `torch.__version__` gives it, and its commit."""

    version: str
    commit: str


def installed_torch() -> Torch | None:
    """The torch that this interpreter would import, or None if there is none.

    The version comes from torch's file `version.py`. The metadata of the package may lack the part
    after the `+`, such as `cu130`.
    """
    file = _file_of("torch", "version.py")
    if file is None:
        return None
    texts = _texts(file)
    version, commit = texts.get("__version__"), texts.get("git_version")
    return Torch(version, commit) if version and commit else None


def installed_torch_npu() -> str | None:
    """The version of torch_npu that this interpreter would import, or None if there is none."""
    file = _file_of("torch_npu", "version.py")
    return None if file is None else _texts(file).get("__version__")


def is_installed(package: str) -> bool:
    """Whether this interpreter would import a package."""
    return _file_of(package, "__init__.py") is not None


def unserved_versions(*, untested_torch: bool) -> dict[str, str]:
    """Why this Python or torch is not served, and whether torch_npu is of another torch."""
    python = version.unserved_python(sys.implementation.name, sys.version_info[:3], sys.abiflags)
    torch, torch_npu = installed_torch(), installed_torch_npu()
    reasons = {"python": python}
    if torch is not None:
        reasons["torch"] = version.unserved_torch(torch.version, untested=untested_torch)
        if torch_npu is not None and not _go_together(torch.version, torch_npu):
            reasons["torch_npu"] = f"torch_npu {torch_npu} is not for torch {torch.version}"
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _go_together(torch: str, torch_npu: str) -> bool:
    """Each torch_npu goes with the torch of the same minor version."""
    minors = version.minor_version(torch), version.minor_version(torch_npu)
    return minors[0] == minors[1] or (0, 0) in minors  # nobody can tell of what is no version


def of_a_worker(torch: Torch) -> dict[str, str]:
    """The factors of a key by which entries of other versions differ (`key/environment`)."""
    return {
        "format": FORMAT,
        "npugx_cache": VERSION,
        "python": f"{platform.python_version()} {sys.implementation.cache_tag}",
        "torch": f"{torch.version} {torch.commit}",
    }


def is_stale(kind: str, factors: Iterable[tuple[str, str, str]], worker: dict[str, str]) -> bool:
    """Whether a worker with these factors can't use an entry of this kind with those.

    Static kernels are of no torch and no Python, and their format is counted by itself.
    """
    if kind == "kernels":
        return False
    return any(worker.get(name, value) != value for name, value, _ in factors)


def _file_of(package: str, name: str) -> Path | None:
    """A file of a package, found without importing the package."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(package, None) if find is not None else None
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            path = Path(folder) / name
            if path.is_file():
                return path
    return None


def _texts(file: Path) -> dict[str, str]:
    """The names that a module binds to constant texts; {} if the file can't be read as Python."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[str, str] = {}
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text)))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text)))
            ):
                found[name] = text
    return found
