"""What static kernels are made for: a program's operators, and all else that kernels depend on."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache import config
from npugx_cache.private import determinism, npu

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from npugx_cache.backend.options import Options

_READ_WHOLE = 1 << 20


@dataclass(frozen=True, slots=True)
class Operators:
    """CANN's descriptions of the operators that a call launched, by file name; no duplicates."""

    texts: Mapping[str, bytes]

    @classmethod
    def dumped_in(cls, folder: Path) -> Operators:
        """Read CANN's dump: the operators that CANN can compile; all if CANN wrote no such list."""
        found: list[Path] = []
        for ending in ("_opcompile", "_debug"):
            found = found or sorted(folder.glob(f"*{ending}"))
        texts, seen = dict[str, bytes](), set[bytes]()
        for path in sorted(found[0].glob("*.json")) if found else ():
            text = path.read_bytes()
            if text not in seen:
                seen.add(text)
                texts[path.name] = text
        return cls(texts)

    def write(self, folder: Path) -> None:
        folder.mkdir()
        for name, text in self.texts.items():
            (folder / name).write_bytes(text)

    @property
    def digests(self) -> frozenset[str]:
        return frozenset(hashlib.sha256(text).hexdigest() for text in self.texts.values())

    def words(self) -> str:
        """The number of operators and their names, for people."""
        names = sorted({name.removesuffix(".json").rpartition("_")[0] for name in self.texts})
        return f"{len(self.texts)} operators: {', '.join(names)}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The operators that need kernels, and the `surroundings`: what else the kernels depend on.

    `surroundings` are names and values, such as the version of CANN. `operators` includes those for
    which this process has kernels already. Otherwise the set, and the packages that are found for
    it, would depend on the order in which graphs are captured.
    """

    operators: Operators
    surroundings: tuple[tuple[str, str], ...]

    @classmethod
    def by(cls, operators: Operators, options: Options, device: int) -> Wanted:
        merged: dict[str, Any] = {"on": options.super_kernel_optimize}
        if options.super_kernel_optimize:
            merged["optimize"] = options.super_kernel_optimize_options
            merged["debug"] = options.super_kernel_debug_options
        return cls(
            operators,
            (
                ("deterministic", str(determinism.told().enabled)),
                ("deterministic.level", str(determinism.level())),
                ("npu.cann", npu.cann_versions()),
                ("npu.custom_operators", custom_operators()),
                ("npu.device", str(vars(torch)["npu"].get_device_name(device))),
                ("super_kernel", json.dumps(merged, sort_keys=True, default=repr)),
            ),
        )


@functools.cache
def custom_operators() -> str:
    """A digest of the operators that were added to CANN, because kernels depend on their code.

    Equal wherever the same operators are installed. Computed once, because the operators can't
    change in the life of a process.
    """
    whole = hashlib.sha256()
    for folder in config.custom_operator_folders():
        whole.update(b"folder\0")
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                whole.update(f"{path.relative_to(folder)}\0".encode() + _content(path))
    return whole.hexdigest()


def _content(path: Path) -> bytes:
    """The size of a file, and the hash of its bytes unless the file is large (a binary)."""
    size = path.stat().st_size
    text = hashlib.sha256(path.read_bytes()).digest() if size <= _READ_WHOLE else b""
    return size.to_bytes(8, "little") + text
