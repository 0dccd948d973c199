from __future__ import annotations

import json
import subprocess
import sys
import tarfile

import pytest


def test_export_and_import_carry_a_cache_to_another_folder(filled, run, tmp_path):
    done = run("export", tmp_path / "b.tar")
    assert done.returncode == 0, done.stderr
    assert "3 entries" in done.stdout
    done = run("import", tmp_path / "b.tar", "--dir", tmp_path / "new", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["entries"]) == 3
    assert "3 entries" in run("ls", "--dir", tmp_path / "new").stdout


@pytest.mark.parametrize(
    ("tests", "number"),
    [
        (["kind=bypass"], 1),
        (["kind!=bypass"], 2),
        (["function=*f1"], 1),
        (["hits>0"], 1),
        (["size>1500", "kind=graph"], 1),
        (["used>1d"], 0),
        (["created<1h", "cost>=20s"], 3),
    ],
)
def test_filters_choose_what_is_exported(filled, run, tmp_path, tests, number):
    options = [part for text in tests for part in ("--filter", text)]
    done = run("export", tmp_path / "b.tar", *options, "--format", "json")
    assert len(json.loads(done.stdout)["entries"]) == number


@pytest.mark.parametrize("text", ["nonsense", "size>", "size>big", "function>x", "colour=red"])
def test_a_wrong_filter_is_one_clear_error(filled, run, tmp_path, text):
    done = run("export", tmp_path / "b.tar", "--filter", text)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "b.tar").exists()


def test_a_file_that_is_no_bundle_and_a_cut_one_are_errors(filled, run, tmp_path):
    run("export", tmp_path / "b.tar")
    data = (tmp_path / "b.tar").read_bytes()
    for name, content in (("text", b"hello" * 500), ("cut", data[: len(data) // 2])):
        (tmp_path / name).write_bytes(content)
        done = run("import", tmp_path / name, "--dir", tmp_path / "new")
        assert done.returncode in {1, 2}
        assert "Traceback" not in done.stderr
    assert run("import", tmp_path / "missing").returncode == 2


@pytest.mark.parametrize(
    ("kind", "content"),
    [(tarfile.GNUTYPE_LONGNAME, b"a" * 512), (tarfile.XHDTYPE, b"20 path=aaaaaaaaaaa\n")],
    ids=["long names", "pax"],
)
def test_a_chain_of_headers_is_an_error_and_no_traceback(run, tmp_path, kind, content):
    header = tarfile.TarInfo("x")
    header.size, header.type = 512, kind
    link = header.tobuf(tarfile.GNU_FORMAT) + content.ljust(512, b"\0")
    (tmp_path / "b.tar").write_bytes(link * 2000 + bytes(1024))
    done = run("import", tmp_path / "b.tar", "--dir", tmp_path / "new")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "b.tar is not a whole bundle: it has too many headers" in done.stderr


def test_a_bundle_that_can_not_be_written_leaves_nothing(filled, run, tmp_path):
    done = run("export", tmp_path / "no/b.tar")
    assert done.returncode == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "state"]


def test_import_is_refused_where_the_cache_is_declared_read_only(filled, run, tmp_path):
    run("export", tmp_path / "b.tar")
    assert run("import", tmp_path / "b.tar", NPUGX_CACHE="readonly").returncode == 1


def test_verify_says_what_is_bad_and_repair_makes_it_good(filled, run, root):
    assert run("verify").returncode == 0
    path = next(path for path in (root / "v1/cas").rglob("?" * 64))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    done = run("verify")
    assert done.returncode == 1
    assert "--repair" in done.stderr
    assert path.name in done.stdout
    assert run("verify", "--repair").returncode == 0
    shown = json.loads(run("verify", "--format", "json").stdout)
    assert shown["bad"] == []
    assert shown["entries"] == 2


def test_export_to_standard_output_writes_the_tar_and_nothing_else(
    filled, run, run_bytes, tmp_path
):
    run("export", tmp_path / "b.tar")
    done = run_bytes("export", "-")
    assert done.returncode == 0
    assert done.stdout == (tmp_path / "b.tar").read_bytes()
    assert b"3 entries" in done.stderr
    as_json = run_bytes("export", "-", "--format", "json")
    assert as_json.stdout == done.stdout
    assert len(json.loads(as_json.stderr)["entries"]) == 3
    taken = run_bytes("import", "-", "--dir", tmp_path / "new", typed=done.stdout)
    assert taken.returncode == 0
    assert b"3 entries (3 new, 0 there already)" in taken.stdout


def test_export_writes_no_tar_to_a_terminal(filled, on_terminal):
    code, shown = on_terminal("export", "-")
    assert code == 2
    assert "terminal" in shown


def test_import_says_how_many_entries_were_new(filled, run, tmp_path):
    run("export", tmp_path / "some.tar", "--filter", "kind=graph")
    run("export", tmp_path / "all.tar")
    new = ("--dir", tmp_path / "new")
    assert "2 entries (2 new, 0 there already)" in run("import", tmp_path / "some.tar", *new).stdout
    assert "3 entries (1 new, 2 there already)" in run("import", tmp_path / "all.tar", *new).stdout
    done = run("import", tmp_path / "all.tar", *new, "--format", "json")
    assert json.loads(done.stdout)["new"] == 0


def test_what_import_refuses_leaves_no_blobs(filled, run, tmp_path):
    run("export", tmp_path / "b.tar")
    run("key", "new", tmp_path / "key")
    signed = {"NPUGX_CACHE_KEY_FILE": str(tmp_path / "key")}
    done = run("import", tmp_path / "b.tar", "--dir", tmp_path / "new", **signed)
    assert done.returncode == 1
    assert "0 entries (0 new, 0 there already), 0 blobs, 0 B" in done.stdout
    assert not list((tmp_path / "new/v1/cas").rglob("?" * 64))


def test_a_full_disk_behind_standard_output_is_one_clear_error(filled, root):
    command = f"{sys.executable} -m npugx_cache.cli export - >/dev/full"
    done = subprocess.run(command, shell=True, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: standard output: No space left")


def test_a_reader_that_goes_is_no_traceback(filled):
    command = f"{sys.executable} -m npugx_cache.cli export - | head -c 1"
    done = subprocess.run(command, shell=True, check=False, capture_output=True)
    assert b"Traceback" not in done.stderr
