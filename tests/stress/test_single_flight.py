"""64 processes, 20 rounds: one compiles, the others wait. Without locks: duplicates, no faults."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.thorough

FLEET = """if True:
    # One parent imports, its children race: 64 interpreters would take longer than the test.
    import fcntl, json, os, sys, time
    from pathlib import Path
    from npugx_cache.config import Settings
    from npugx_cache.store import Draft, Locked, NotStored, open_store
    from npugx_cache.store.format.layout import Folder
    import filelock, npugx_cache.store.content.lock, npugx_cache.store.content.publish

    root, processes, rounds, locks = Path(sys.argv[1]), *map(int, sys.argv[2:4]), sys.argv[4]
    if locks == "missing":
        def flock(*_): raise OSError(38, "Function not implemented")
        fcntl.flock = flock
    elif locks == "useless":
        fcntl.flock = lambda *_: None
    hosts = 2 if locks == "of each host" else 1
    name_of_lock = Folder.lock

    def race(round_):
        store = open_store(Settings(cache_dir=root))
        key = f"{round_:064x}"
        appeared = lambda: bool(store.candidates(key).manifests)
        compiled = 0
        if not appeared():
            with store.lock(key, wait=60, done=appeared):
                if not appeared():
                    compiled = 1
                    time.sleep(0.1)
                    answer = store.publish(Draft(
                        key=key, identity="b" * 64, kind="graph", cost_seconds=0.1, factors=(),
                        about={}, blobs={"x": b"result %d" % round_ * 999}))
                    done = time.time()
                    assert not isinstance(answer, NotStored), answer
        manifest, = store.candidates(key).manifests
        assert store.read(manifest, ["x"])["x"] == b"result %d" % round_ * 999
        return compiled, time.time()

    rows = []
    for round_ in range(rounds):
        start, go = os.pipe()
        out, into = os.pipe()
        children = []
        for number in range(processes):
            child = os.fork()
            if child == 0:
                # What a network mount with locks per host comes to: a lock of its own each.
                host = number % hosts
                Folder.lock = lambda folder, name: name_of_lock(folder, f"{name}{host:02x}")
                os.close(go)
                os.read(start, 1)  # returns when the parent closes its end
                try:
                    os.write(into, json.dumps(race(round_)).encode().ljust(64))
                except BaseException as error:
                    print(repr(error), file=sys.stderr, flush=True)
                os._exit(0)
            children.append(child)
        os.close(start); os.close(go); os.close(into)
        for child in children:
            os.waitpid(child, 0)
        answers = []
        while len(part := os.read(out, 64)) == 64:
            answers.append(json.loads(part))
        os.close(out)
        first = min(t for c, t in answers if c)
        rows.append([len(answers), sum(c for c, _ in answers), max(t for _, t in answers) - first])
    print(json.dumps(rows))
"""


def fleet(python, root, processes, rounds, locks="working"):
    process = python(FLEET, root, processes, rounds, locks)
    out, err = process.communicate(timeout=280)
    assert err == "", err[-2000:]
    return json.loads(out)


def test_of_64_processes_one_compiles_in_each_of_20_rounds(python, place):
    rows = fleet(python, place / "cache", 64, 20)
    assert [row[:2] for row in rows] == [[64, 1]] * 20
    print("last worker after the first, s:", sorted(round(row[2], 3) for row in rows))


def test_of_two_hosts_whose_locks_do_not_reach_each_other_two_compile_at_most(python, place):
    rows = fleet(python, place / "cache", 12, 4, "of each host")
    assert [row[0] for row in rows] == [12] * 4
    assert all(1 <= row[1] <= 2 for row in rows)


@pytest.mark.parametrize("locks", ["missing", "useless"])
def test_without_working_locks_everything_stays_right(python, place, locks):
    rows = fleet(python, place / "cache", 8, 3, locks)
    for answered, compiled, _ in rows:
        assert answered == 8
        assert 1 <= compiled <= 8
