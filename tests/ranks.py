"""How a rank of a gloo group ends."""

import atexit
import os
import sys


def leave():
    """End the process after its exit handlers, without the end of the interpreter.

    A thread of gloo may still hold the tensors of the last collective, for as long as it waits for
    a processor. If it lets them go while the interpreter ends, torch 2.13 aborts the process:
    "terminate called without an active exception". That also happens without this package.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)
