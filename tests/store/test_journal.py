"""The journal of lookups without a hit: bounded, harmless, safe from strangers, forks, threads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from npugx_cache.config import state_folder
from npugx_cache.store import Journal, JournalLine

HERE = """if True:
    import logging, os, sys, time  # the interpreter may be closed to another user
    from npugx_cache.config import state_folder
    from npugx_cache.store import Journal, JournalLine
    from npugx_cache.store.upkeep import flushing

    journal = Journal(sys.argv[1], state_folder())

    def add(function):
        now = time.time()
        journal.add(JournalLine(now, function, "miss", ("why",), os.getpid()))

"""


@pytest.fixture
def journal(root):
    return Journal(str(root), state_folder())


def line(function="f", when=None, **values):
    when = time.time() if when is None else when
    return JournalLine(when, function, "miss", ("x changed",), os.getpid(), **values)


def functions(journal, since=0.0):
    return [each.function for each in journal.load(since)]


def newest_file(state_home):
    (path,) = state_home.rglob("misses.jsonl")
    return path


def test_lines_come_back_newest_first_after_a_flush(journal, state_home, root):
    now = time.time()
    old = line("old", now - 100, rank=3, nearest="ab" * 32, stored="cd" * 32, seconds=4.5)
    old = old._replace(phases=(("tracing", 4.0), ("packing", 0.5)))
    journal.add(old)
    journal.add(line("new", now))
    assert not state_home.exists()
    journal.flush()
    journal.flush()
    assert functions(journal) == ["new", "old"]
    assert Journal(str(root), state_folder()).load()[1] == old
    assert functions(journal, since=now - 50) == ["new"]
    assert Journal(f"{root}2", state_folder()).load() == []


def test_it_is_bounded_in_bytes_and_the_newest_lines_stay(journal, state_home):
    text = "é" * 5000
    for number in range(0, 4000, 100):
        for each in range(number, number + 100):
            reasons = (f"{each} {text}",) * 20
            journal.add(JournalLine(time.time(), f"f{each}", "miss", reasons, os.getpid()))
        journal.flush()
    files = [path for path in state_home.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2 << 20
    found = functions(journal)
    assert found[0] == "f3999"
    assert len(found) > 100


def test_a_reason_that_was_cut_says_so(journal):
    journal.add(line()._replace(reasons=("x" * 1000,)))
    journal.flush()
    ((reason,),) = (each.reasons for each in journal.load())
    assert reason.endswith("x...")
    assert len(reason) == 300


def test_what_waits_in_memory_is_bounded(journal):
    for number in range(10_000):
        journal.add(line(f"f{number}"))
    journal.flush()
    assert functions(journal)[0] == "f9999"
    assert len(functions(journal)) < 1000


def test_lines_older_than_a_month_are_not_shown_and_go_at_last(journal, state_home):
    now = time.time()
    journal.add(line("ancient", now - 40 * 86400))
    journal.add(line("recent", now - 86400))
    journal.flush()
    assert functions(journal) == ["recent"]
    journal.add(line("next"))
    journal.flush()
    assert functions(journal) == ["next", "recent"]
    assert "ancient" not in newest_file(state_home).read_text()


def test_a_line_that_was_cut_off_is_lost_alone(journal, state_home):
    journal.add(line("before"))
    journal.flush()
    with newest_file(state_home).open("ab") as file:
        file.write(b'{"time": 17, "fun')
    journal.add(line("after"))
    journal.flush()
    assert set(functions(journal)) == {"before", "after"}


@pytest.mark.parametrize(
    ("phases", "read"),
    [
        (None, ()),
        (7, ()),
        ([["tracing", 1], ["packing", "2"], ["x", -1.0], 3], (("tracing", 1.0),)),
    ],
)
def test_phases_that_are_none_are_left_out_and_the_line_stays(journal, state_home, phases, read):
    journal.add(line("f"))
    journal.flush()
    path = newest_file(state_home)
    row = json.loads(path.read_text())
    if phases is None:
        del row["phases"]  # as it was written before there were phases
    else:
        row["phases"] = phases
    path.write_text(json.dumps(row))
    assert [(each.function, each.phases) for each in journal.load()] == [("f", read)]


@pytest.mark.parametrize(
    "planted",
    [b"\xff" * 100, b"[" * 100_000, b"7", b'{"time": NaN}', b"{}", b"\0" * 5000],
    ids=["no text", "deep", "a number", "no time", "empty", "zeros"],
)
def test_nonsense_is_left_out(journal, state_home, planted):
    journal.add(line("before"))
    journal.flush()
    path = newest_file(state_home)
    path.write_bytes(path.read_bytes() + planted + b"\n")
    assert functions(journal) == ["before"]


@pytest.mark.parametrize("huge", [{"time": 10**400}, {"phases": [["tracing", 10**400]]}])
def test_a_number_that_is_too_large_loses_its_line_alone(journal, state_home, huge):
    journal.add(line("before"))
    journal.flush()
    path = newest_file(state_home)
    row = json.loads(path.read_text())
    path.write_text(path.read_text() + json.dumps({**row, "function": "huge", **huge}) + "\n")
    assert functions(journal) == ["before"]


def test_a_full_disk_loses_lines_and_raises_nothing(root, python, state_home):
    code = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for number in range(20):
    add(f"f{number}")
    journal.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
add("last")
"""
    out, err = python(HERE + _indented(code), root).communicate(timeout=30)
    assert (out, err) == ("", "")
    found = functions(Journal(str(root), state_folder()))
    assert "last" in found
    assert 2 <= len(found) < 20


def _indented(code):
    return "\n".join(f"    {each}" for each in code.splitlines())


def test_a_state_folder_that_is_read_only_loses_lines_and_raises_nothing(python, monkeypatch):
    # pytest's own folders are closed to others, so this one lies beside them.
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o555)
        monkeypatch.setenv("XDG_STATE_HOME", place)
        code = """
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
add("f")
journal.flush()
print(journal.load())
"""
        out, err = python(HERE + _indented(code), f"{place}/cache").communicate(timeout=30)
        assert (out.strip(), err) == ("[]", "")
        assert list(Path(place).iterdir()) == []


def test_lines_of_a_process_that_ends_are_written(root, python):
    out, err = python(HERE + '    add("f")', root).communicate(timeout=30)
    assert (out, err) == ("", "")
    assert functions(Journal(str(root), state_folder())) == ["f"]


def test_a_killed_writer_loses_its_own_lines_only(journal, root, python):
    code = (
        'add("written"); journal.flush(); add("lost"); print("ready", flush=True); time.sleep(60)'
    )
    process = python(HERE + f"    {code}", root)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    journal.add(line("other"))
    journal.flush()
    assert set(functions(journal)) == {"written", "other"}


def test_a_forked_child_writes_its_own_lines_and_the_parent_its_own(root, python):
    code = """
add("parent")
child = os.fork()
if not child:
    add("child")
    sys.exit()  # runs atexit
os.waitpid(child, 0)
print(child)
"""
    out, err = python(HERE + _indented(code), root).communicate(timeout=30)
    assert err == ""
    found = Journal(str(root), state_folder()).load()
    assert sorted(each.function for each in found) == ["child", "parent"]
    assert {each.function: each.pid for each in found}["child"] == int(out)


def test_a_fork_beside_threads_that_add_hangs_on_no_lock(root, python):
    code = """
import threading
for number in range(4):
    threading.Thread(target=lambda: [add("thread") for _ in range(50_000)], daemon=True).start()
for number in range(5):
    child = os.fork()
    if not child:
        add("child")
        journal.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""
    process = python(HERE + _indented(code), root)
    process.communicate(timeout=120)
    assert functions(Journal(str(root), state_folder())).count("child") == 5


def test_processes_that_write_at_once_lose_nothing(root, python):
    code = """
sys.stdin.readline()
for number in range(300):
    add(f"{os.getpid()}-{number}")
    journal.flush()
"""
    writers = [python(HERE + _indented(code), root) for _ in range(2)]
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        assert writer.communicate(timeout=120) == ("", "")
    expected = {f"{writer.pid}-{number}" for writer in writers for number in range(300)}
    assert set(functions(Journal(str(root), state_folder()))) == expected


def test_threads_lose_nothing(journal):
    not_written = []

    def work(name):
        for number in range(50):
            journal.add(line(f"{name}-{number}"))
            journal.flush()
            # Another thread, as that of the timer, may have taken the line and still write it.
            if f"{name}-{number}" not in functions(journal):
                not_written.append(f"{name}-{number}")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not_written == []
    assert len(set(functions(journal))) == 8 * 50


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_a_file_that_is_a_link_is_neither_read_nor_written(journal, state_home, tmp_path, link):
    journal.add(line("mine"))
    journal.flush()
    path = newest_file(state_home)
    path.rename(tmp_path / "elsewhere")
    link(tmp_path / "elsewhere", path)
    before = (tmp_path / "elsewhere").read_bytes()
    assert functions(journal) == []
    journal.add(line("more"))
    journal.flush()
    assert (tmp_path / "elsewhere").read_bytes() == before


def test_a_file_that_another_user_wrote_is_not_read(journal, state_home):
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file to another user")
    journal.add(line("mine"))
    journal.flush()
    os.chown(newest_file(state_home), 65534, 65534)
    assert functions(journal) == []


def test_a_folder_that_everybody_can_write_is_not_read(journal, state_home, caplog):
    journal.add(line("mine"))
    journal.flush()
    newest_file(state_home).parent.chmod(0o777)
    assert functions(journal) == []
    assert "no misses are noted" in caplog.text


def test_a_fifo_in_the_place_of_the_file_makes_nobody_wait(journal, state_home):
    journal.add(line("mine"))
    journal.flush()
    path = newest_file(state_home)
    path.unlink()
    subprocess.run(["mkfifo", path], check=True)
    assert functions(journal) == []
    journal.add(line("more"))
    journal.flush()
