"""An installation of CANN as torch_npu looks for it, with a simulated op_compiler."""

from __future__ import annotations

import os
from pathlib import Path

TOOL = Path(__file__).parent / "op_compiler.py"


def install(home: Path) -> dict[str, str]:
    """Make it, and return the environment of processes that use it."""
    for each in ("bin", "opp", "runtime", "compiler"):
        (home / each).mkdir(parents=True)
    (home / "bin" / "op_compiler").symlink_to(TOOL)
    return {
        "ASCEND_HOME_PATH": str(home),
        "ASCEND_OPP_PATH": str(home / "opp"),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
    }
