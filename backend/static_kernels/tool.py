"""Runs CANN's op_compiler, and the installers of its packages, as separate processes."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache import config
from npugx_cache.backend.static_kernels.packages import NoKernels
from npugx_cache.private import npu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npugx_cache.backend.options import Options
    from npugx_cache.backend.static_kernels.packages import Packages
    from npugx_cache.backend.static_kernels.wanted import Operators

logger = logging.getLogger("npugx_cache")

NAME = "op_compiler"
_SHOWN = 2000
_BUSY_TRIES = 20


def compile_packages(
    operators: Operators, folder: Path, options: Options, device: int
) -> Packages | NoKernels:
    """Have CANN compile kernels for these operators. `folder` is for temporary files."""
    tool = shutil.which(NAME)
    if tool is None:
        return NoKernels(f"CANN's {NAME} is not on the PATH")
    source, out = folder / "operators", folder / "packages"
    operators.write(source)
    out.mkdir()
    # The tool runs in `folder`, because it leaves files (kernel_meta) where it runs.
    failure = run(
        [str(Path(tool).absolute()), *_arguments(source, out, options, device)], NAME, folder
    )
    if failure:
        return NoKernels(failure)
    packages = {path.name: path.read_bytes() for path in sorted(out.glob("*.run"))}
    return packages or NoKernels(f"{NAME} has made no package")


def _arguments(source: Path, out: Path, options: Options, device: int) -> list[str]:
    name = str(vars(torch)["npu"].get_device_name(device))
    jobs = str(os.cpu_count() or 1)
    given = ["-p", str(source), "-v", name, "-j", jobs, "-o", str(out)]
    if options.super_kernel_optimize:
        given.append("--enable_super_kernel")
        settings = _settings(
            options.super_kernel_optimize_options, options.super_kernel_debug_options
        )
        given += ["--super_kernel_options", settings] if settings else []
    level = config.cann_log_level()
    given += ["-l", level] if level is not None else []
    return [*given, "-f", "true"] if npu.is_cann_from("9.0.0") else given


def _settings(*mappings: Mapping[str, Any] | None) -> str:
    pairs = (pair for mapping in mappings for pair in (mapping or {}).items())
    return ":".join(f"{name}={_text(value)}" for name, value in pairs)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={_text(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def run(command: Sequence[str], title: str, folder: Path | None = None) -> str:
    """Run a program in a folder and wait for its end; return why it failed, or "".

    The program is killed, with all that it started, after NPUGX_STATIC_KERNEL_WAIT seconds.
    """
    started, limit = time.monotonic(), config.static_kernel_wait()
    logger.debug("%s: running %s", title, command)
    # We read the output from a file, because a grandchild that outlives the program would keep a
    # pipe open, and we would wait for it.
    with tempfile.TemporaryFile() as said:
        try:
            process = _start(command, said, folder)
        except OSError as error:
            return f"{title} can't be run: {error.strerror}"
        try:
            code = process.wait(limit)
        except BaseException as error:
            _kill(process)
            if isinstance(error, subprocess.TimeoutExpired):
                return f"{title} took longer than {limit:g} s (NPUGX_STATIC_KERNEL_WAIT)"
            raise
        said.seek(0)
        text = said.read().decode(errors="replace").strip()
    logger.debug("%s: %d after %.1f s: %s", title, code, time.monotonic() - started, text[-_SHOWN:])
    if not code:
        return ""
    last = text.splitlines()[-1][:200] if text else "no message"
    return f"{title} failed with {code}: {last}"


def _start(command: Sequence[str], said: Any, folder: Path | None) -> subprocess.Popen[bytes]:
    for left in reversed(range(_BUSY_TRIES)):
        try:
            return subprocess.Popen(  # noqa: S603 - a list, no shell: CANN's tool, or a package of its
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            # A child that another thread has just forked may still hold the file open for writing
            # (ETXTBSY): try again.
            if error.errno != errno.ETXTBSY or not left:
                raise
            time.sleep(0.05)
    raise AssertionError


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and all processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so its number is not reused
    process.wait()
