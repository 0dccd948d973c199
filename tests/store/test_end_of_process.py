"""What a store does when the interpreter ends."""

import subprocess
import sys

ENDING = """
import sys
from npugx_cache.store.io import syscalls, tree

kept = tree.Tree(sys.argv[1], "private")
kept.open()
syscalls.os = None  # as Python leaves a module that something still refers to
del kept
"""


def test_folders_are_closed_in_silence_when_modules_are_empty(tmp_path):
    tmp_path.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-c", ENDING, tmp_path], check=True, capture_output=True, text=True
    )
    assert done.stderr == ""
