"""Ranks under torchrun, of which one is killed or stopped in its compile, or all compile (P2, P5).

Also with another number of ranks than before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("ranks_compiling.py")
# By default gloo asks the resolver for the name of the host, and takes whatever answers.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
# Without it, ranks that torchrun restarts meet at addresses of those that were there before.
OWN_MEETING = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def torchrun(surroundings, name, mode, world, *options):
    """What each rank found."""
    folder = surroundings.folder / name
    folder.mkdir()
    run = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", world, *options
    environment = surroundings.environment(**LOOPBACK, **OWN_MEETING)
    command = [sys.executable, *map(str, run), str(SCRIPT), str(folder), mode]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads((folder / f"found{rank}.json").read_text()) for rank in range(world)]
    assert all(each["right"] for each in found)
    return found


def counts(found):
    """Hits, misses, bypasses and stored of all ranks together."""
    return [sum(column) for column in zip(*(each["counts"] for each in found), strict=True)]


def test_of_ranks_with_one_graph_one_compiles_also_if_another_was_killed_in_its_compile(
    surroundings,
):
    """torchrun starts all ranks again when one has died."""
    killed = torchrun(surroundings, "killed", "killed", 4, "--max-restarts", 1)
    assert counts(killed) == [3, 1, 0, 1]
    assert counts(torchrun(surroundings, "restarted", "plain", 4)) == [4, 0, 0, 0]
    assert counts(torchrun(surroundings, "fewer ranks", "plain", 2)) == [1, 1, 0, 1]
    assert counts(torchrun(surroundings, "as many as before", "plain", 4)) == [4, 0, 0, 0]


def test_ranks_whose_graphs_depend_on_the_rank_compile_at_the_same_time(surroundings):
    """All but one: before the first graph is stored, nobody knows that it depends on the rank."""
    found = torchrun(surroundings, "cold", "apart", 4)
    assert sorted(each["together"] for each in found) == [False, True, True, True]
    assert [each["counts"] for each in found] == [[0, 1, 0, 1]] * 4
    again = torchrun(surroundings, "again", "apart", 4)
    assert [each["counts"] for each in again] == [[1, 0, 0, 0]] * 4


def test_a_constant_separates_exactly_the_ranks_that_differ(surroundings):
    assert counts(torchrun(surroundings, "cold", "halves", 4)) == [2, 2, 0, 2]


def test_a_rank_that_waits_for_a_stopped_process_reaches_the_collective_in_time(surroundings):
    """The other rank has compiled, and waits in the collective until its group gives up."""
    folder, timeout = surroundings.folder / "ranks", 40
    folder.mkdir()
    slow = {"NPUGX_CACHE_DIR": str(surroundings.folder / "slow")}
    common = {**LOOPBACK, "MASTER_ADDR": "127.0.0.1", "GROUP_TIMEOUT": str(timeout)}
    alone = {**common, "WORLD_SIZE": "1", "RANK": "0", "MASTER_PORT": free_port()}
    stopped = surroundings.start(SCRIPT, folder, "stopped", **alone, **slow)
    wait_until_stopped(stopped.process.pid)

    ranks = []
    common |= {"WORLD_SIZE": "2", "MASTER_PORT": free_port(), "NPUGX_CACHE_LOG": "info"}
    for rank, place in (("0", {}), ("1", slow)):
        process = surroundings.start(SCRIPT, folder, "plain", **common, **place, RANK=rank).process
        ranks.append(process)
    _, said = (process.communicate(timeout=600)[1] for process in ranks)
    assert [process.returncode for process in ranks] == [0, 0], said[-4000:]
    bound = "half of the timeout of the process group"
    assert f"at most {timeout / 2:.0f} s, {bound}" in said
    assert f"going on without, {bound}" in said
    found = [json.loads((folder / f"found{rank}.json").read_text()) for rank in range(2)]
    assert [each["counts"] for each in found] == [[0, 1, 0, 1]] * 2
    assert all(each["right"] for each in found)


def free_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def wait_until_stopped(pid):
    """Until the process has stopped itself, as its parent is told by the system."""
    while not os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]):
        time.sleep(0.1)
