#!/usr/bin/env python3
"""A simulated op_compiler of CANN's: operator descriptions in, a self-extracting package out.

It takes the vendor's command line and refuses any other. A kernel here is a file for each
operator, which the simulated runtime counts. OP_COMPILER_LOG names a file that gets a line per
call: its arguments, the descriptions, and its process. OP_COMPILER_DOES makes it `fail`, `hang`, be
`slow`, make `nothing` or a `broken` package.
"""

import argparse
import hashlib
import io
import json
import os
import sys
import tarfile
import time
from pathlib import Path

INSTALLER = """#!/bin/sh
where="$ASCEND_HOME_PATH"
for each in "$@"; do
    case "$each" in
        --install-path=*) where="${each#--install-path=}" ;;
        -q) ;;
        *) echo "unknown argument $each"; exit 2 ;;
    esac
done
%s
folder="$where/opp/static_kernel/ai_core/%s"
mkdir -p "$folder" && sed '1,/^__PACKAGE__$/d' "$0" | tar -xz -C "$folder"
exit $?
__PACKAGE__
"""
UNINSTALLER = '#!/bin/sh\nrm -r "$(dirname "$0")"\n'


def arguments():
    parser = argparse.ArgumentParser(prog="op_compiler", allow_abbrev=False)
    parser.add_argument("-p", dest="source", type=Path, required=True)
    parser.add_argument("-v", dest="device", required=True)
    parser.add_argument("-j", dest="jobs", type=int, required=True)
    parser.add_argument("-o", dest="out", type=Path, required=True)
    parser.add_argument("-l", dest="level", choices=("debug", "info", "warning", "error"))
    parser.add_argument("-f", dest="f", choices=("true", "false"))
    parser.add_argument("--enable_super_kernel", action="store_true")
    parser.add_argument("--super_kernel_options")
    return parser.parse_args()


def package(name, operators, line=""):
    """The bytes of a `.run` file; `line` is run before anything is unpacked."""
    packed = io.BytesIO()
    files = {f"{digest}.o": text for digest, text in operators.items()}
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, text in {**files, "uninstall.sh": UNINSTALLER.encode()}.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(text), 0o755
            archive.addfile(member, io.BytesIO(text))
    return (INSTALLER % (line, name)).encode() + packed.getvalue()


def main():
    given, does = arguments(), os.environ.get("OP_COMPILER_DOES", "")
    texts = [path.read_bytes() for path in sorted(given.source.glob("*.json"))]
    if log := os.environ.get("OP_COMPILER_LOG"):
        with Path(log).open("a", encoding="utf-8") as file:
            descriptions = [json.loads(text) for text in texts]
            call = {"argv": sys.argv[1:], "operators": descriptions, "pid": os.getpid()}
            print(json.dumps(call), file=file)
    if does == "fail":
        print("E40021: no template fits", file=sys.stderr)
        return 1
    if does in ("hang", "slow"):
        time.sleep(600 if does == "hang" else 3)
    if does == "nothing":
        return 0
    operators = {hashlib.sha256(text).hexdigest()[:16]: text for text in texts}
    name = f"static_kernel_{hashlib.sha256(''.join(sorted(operators)).encode()).hexdigest()[:12]}"
    line = 'echo "no space left"; exit 3' if does == "broken" else ""
    path = given.out / f"{name}.run"
    path.write_bytes(package(name, operators, line))
    path.chmod(0o755)
    return 0


if __name__ == "__main__":
    sys.exit(main())
