"""Make the CUDA libraries that torch's wheel for aarch64 needs and that are not here.

python stub_libraries.py TORCH_LIB_FOLDER SYSTEM_LIB_FOLDER

There is no CPU build of torch for aarch64 on PyPI. Its CUDA build can't be imported without the
libraries of CUDA, gigabytes that nothing here would call. Each function of the libraries made here
returns 100, which CUDA's runtime means by "no device".
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

TOOLS = "aarch64-linux-gnu-"


def output(tool: str, *arguments: object) -> str:
    command = [f"{TOOLS}{tool}", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def names(library: Path, kind: str) -> set[str]:
    """Dynamic symbols, with versions: `--defined-only`, or `--undefined-only` and not weak."""
    rows = [line.split() for line in output("nm", "-D", kind, library).splitlines()]
    wanted = [row for row in rows if kind == "--defined-only" or row[-2] == "U"]
    return {row[-1] for row in wanted}


def versions(library: Path) -> dict[str, str]:
    """By each version of symbols that the library needs, the file which must have the version."""
    found, file = {}, ""
    for line in output("readelf", "-VW", library).splitlines():
        if (match := re.search(r"File: (\S+)", line)) is not None:
            file = match[1]
        elif (match := re.search(r"Name: (\S+)  Flags", line)) is not None and file:
            found[match[1]] = file
    return found


def main(folder: Path, system: Path) -> None:
    libraries = sorted(folder.glob("*.so*"))
    needed: set[str] = set()
    asked: set[str] = set()
    defined: set[str] = set()
    file_of: dict[str, str] = {}
    for library in libraries:
        dynamic = output("readelf", "-dW", library)
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
        asked |= names(library, "--undefined-only")
        defined |= {name.partition("@")[0] for name in names(library, "--defined-only")}
        file_of |= versions(library)
    missing = sorted(
        name for name in needed if not (folder / name).exists() and not (system / name).exists()
    )
    if not missing:
        return
    symbols: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in missing}
    for version, file in file_of.items():
        if file in symbols:
            symbols[file][version] = set()
    for name, _, version in (symbol.partition("@") for symbol in asked):
        file = file_of.get(version, missing[0] if not version else "")
        if file in symbols and (version or name not in defined):
            symbols[file][version].add(name)
    for file, by_version in symbols.items():
        build(folder / file, by_version)
    print(f"{len(missing)} libraries: {' '.join(missing)}")


def build(path: Path, by_version: dict[str, set[str]]) -> None:
    functions = sorted(set().union(*by_version.values()))
    source, script = path.with_suffix(".c"), path.with_suffix(".map")
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in functions))
    script.write_text(
        "".join(
            f"{version} {{ global: {' '.join(f'{name};' for name in sorted(those))} }};\n"
            for version, those in by_version.items()
            if version
        )
    )
    versioned = [f"-Wl,--version-script={script}"] if script.stat().st_size else []
    output(
        "gcc", "-w", "-shared", "-fPIC", source, f"-Wl,-soname,{path.name}", "-o", path, *versioned
    )
    source.unlink()
    script.unlink()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
