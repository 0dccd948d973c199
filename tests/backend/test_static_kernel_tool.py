"""Programs of CANN's are processes of their own: how they end, and what is said of it."""

import os
import sys

import pytest

from npugx_cache.backend.static_kernels import tool
from npugx_cache.backend.static_kernels.wanted import Operators


def test_a_program_that_ends_well(tmp_path):
    write = "import pathlib; pathlib.Path('left').touch()"
    assert tool.run([sys.executable, "-c", write], "it", tmp_path) == ""
    assert (tmp_path / "left").exists()


def test_a_program_that_fails_is_quoted():
    code = "print('much'); print('E40021: no template'); raise SystemExit(4)"
    assert tool.run([sys.executable, "-c", code], "it") == "it failed with 4: E40021: no template"


def test_a_program_that_is_none(tmp_path):
    assert tool.run([str(tmp_path / "none")], "it") == "it can't be run: No such file or directory"
    text = tmp_path / "text"
    text.write_text("no program")
    text.chmod(0o600)
    assert tool.run([str(text)], "it") == "it can't be run: Permission denied"


def test_a_program_that_hangs_is_ended_with_what_it_has_started(tmp_path, monkeypatch):
    """A pipe's end is closed when nobody has it open any more: then reading gives nothing."""
    monkeypatch.setenv("NPUGX_STATIC_KERNEL_WAIT", "0.2")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    hang = f"sh -c 'sleep 600' 3>{fifo} & exec 3>{fifo}; echo x >&3; sleep 600"
    assert "took longer than 0.2 s" in tool.run(["/bin/sh", "-c", hang], "it")
    os.set_blocking(reader, True)
    assert os.read(reader, 10) in (b"x\n", b"")
    assert os.read(reader, 10) == b""
    os.close(reader)


@pytest.mark.parametrize("ending", ["_opcompile", "_debug"])
def test_operators_are_read_from_what_cann_writes(tmp_path, ending):
    folder = tmp_path / f"12{ending}"
    folder.mkdir()
    for name, text in (("Add_0", "a"), ("Add_1", "a"), ("Mul_2", "b")):
        (folder / f"{name}.json").write_text(text)
    (folder / "notes.txt").write_text("c")
    operators = Operators.dumped_in(tmp_path)
    assert operators.texts == {"Add_0.json": b"a", "Mul_2.json": b"b"}
    assert operators.words() == "2 operators: Add, Mul"


def test_operators_that_can_be_compiled_come_before_all_others(tmp_path):
    for ending in ("_opcompile", "_debug"):
        (tmp_path / f"1{ending}").mkdir()
        (tmp_path / f"1{ending}" / f"Add{ending}.json").write_text(ending)
    assert list(Operators.dumped_in(tmp_path).texts) == ["Add_opcompile.json"]
    assert not Operators.dumped_in(tmp_path / "1_debug").texts
