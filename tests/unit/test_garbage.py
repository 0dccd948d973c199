"""Automatic garbage collection is on again after a compile, however the compile ends."""

import subprocess
import sys

import pytest

SCRIPTS = {
    "an exception": """
try:
    with garbage.collect_at_end():
        assert not gc.isenabled()
        raise KeyError
except KeyError:
    print(gc.isenabled())
""",
    "a compile inside a compile": """
with garbage.collect_at_end():
    with garbage.collect_at_end():
        pass
    inside = gc.isenabled()
print(not inside and gc.isenabled())
""",
    "an interruption at the end of the collection": """
collect = gc.collect

def interrupted(generation):  # as a signal handler that raises when the collection has ended
    collect(generation)
    raise KeyboardInterrupt

gc.collect = interrupted
try:
    with garbage.collect_at_end():
        pass
except KeyboardInterrupt:
    print(gc.isenabled())
""",
    "a fork while another thread compiles": """
import os, threading
inside, end = threading.Event(), threading.Event()

def compiles():
    with garbage.collect_at_end():
        inside.set()
        end.wait()

thread = threading.Thread(target=compiles)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    os._exit(0 if gc.isenabled() else 1)
_, status = os.waitpid(child, 0)
end.set()
thread.join()
print(status == 0 and gc.isenabled())
""",
    "a process that has switched collection off": """
gc.disable()
with garbage.collect_at_end():
    pass
print(not gc.isenabled())
""",
}


@pytest.mark.parametrize("case", SCRIPTS)
def test_collection_is_as_before(case):
    script = "import gc\nfrom npugx_cache.interpreter import garbage\n" + SCRIPTS[case]
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
