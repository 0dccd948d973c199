from __future__ import annotations

import json
import subprocess
import sys

import pytest


def test_ls_shows_what_when_size_hits_saved_seconds_and_environment(filled, run):
    done = run("ls")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["ENTRY", "KIND", "FUNCTION"]
    (row,) = [line for line in lines if "Decoder.f1" in line]
    for shown in ("graph", "f32[1, 16]", "cpu x86", " 3 ", "60.0 s", "2.4 kB"):
        assert shown in row
    (bypass,) = [line for line in lines if "Decoder.f2" in line]
    assert "uses aten::rand" in bypass
    assert "3 entries (1 bypass), 0 unreadable" in lines[-1]
    assert "3 hits, 60.0 s of compiling saved" in lines[-1]
    assert str(filled.root) in lines[-1]


def test_the_json_of_ls_has_numbers_and_whole_ids(filled, run):
    listing = json.loads(run("ls", "--format", "json").stdout)
    one = next(row for row in listing["entries"] if row["function"].endswith("f1"))
    assert len(one["entry"]) == 64
    assert one["hits"] == 3
    assert one["saved_seconds"] == 60.0
    assert listing["total"]["entries"] == 3
    assert listing["total"]["bypasses"] == 1


@pytest.mark.parametrize(
    ("order", "first"), [("hits", "f1"), ("size", "f1"), ("created", "f2"), ("used", "f1")]
)
def test_ls_sorts_by_what_is_asked(filled, run, order, first):
    rows = json.loads(run("ls", "--format", "json", "--sort", order).stdout)["entries"]
    assert rows[0]["function"].endswith(first)


def test_an_unreadable_entry_is_listed_as_such_and_stays_where_it_is(filled, run):
    (item, *_) = filled.listing()
    path = filled.root / "v1/ac" / item.manifest.key[:2] / item.manifest.key / item.manifest.entry
    path.write_bytes(b"\x1b[31mnonsense" * 10)
    for _ in range(2):
        done = run("ls")
        assert done.returncode == 0
        assert f"{item.manifest.entry[:12]}  unreadable: " in done.stdout
        assert "1 unreadable" in done.stdout
        assert "\x1b" not in done.stdout


def test_a_cache_that_does_not_exist_yet_is_empty_and_is_not_created(run, root):
    done = run("ls")
    assert done.returncode == 0
    assert "0 entries" in done.stdout
    assert "does not exist yet" in done.stdout
    assert not root.exists()


@pytest.mark.parametrize("make", [False, True])
def test_a_named_folder_without_a_cache_is_an_error(run, tmp_path, make):
    place = tmp_path / "typo"
    if make:
        place.mkdir()
    done = run("ls", "--dir", place)
    assert done.returncode == 2
    assert str(place) in done.stderr
    assert "Traceback" not in done.stderr
    assert not (place / "v1").exists()


def test_a_wrong_setting_is_one_clear_error(run):
    done = run("ls", NPUGX_CACHE_TRUST="everybody")
    assert done.returncode == 2
    assert "NPUGX_CACHE_TRUST='everybody'" in done.stderr


def test_a_store_that_is_not_trusted_exits_1_with_the_remedy(filled, run):
    filled.root.chmod(0o777)
    done = run("ls")
    assert done.returncode == 1
    assert "chmod o-w" in done.stderr


def test_ls_works_while_the_cache_is_switched_off(filled, run):
    assert "3 entries" in run("ls", NPUGX_CACHE="off").stdout


def test_names_from_the_store_can_not_steer_the_terminal(filled, run):
    from npugx_cache.store import Draft

    about = {"function": "f\x1b]0;owned\x07\n\u202egnp", "signature": "x\ty"}
    filled.publish(
        Draft(
            key="e" * 64,
            identity="1d" * 16,
            kind="graph",
            cost_seconds=1.0,
            factors=(),
            about=about,
            blobs={},
        )
    )
    shown = run("ls").stdout
    assert not {"\x1b", "\x07", "\u202e", "\t"} & set(shown)
    assert len(shown.splitlines()) == 6


def test_kernels_are_listed_with_what_they_saved(filled, run):
    from npugx_cache.store import Draft

    answer = filled.publish(
        Draft(
            key="e" * 64,
            identity="2d" * 16,
            kind="kernels",
            cost_seconds=30.0,
            factors=(),
            about={"function": "static kernels", "signature": "4 operators: add, mul"},
            blobs={"a.run": b"#!/bin/sh\n"},
        )
    )
    for _ in range(2):
        filled.record_hit(answer.manifest)
    filled.flush()
    text = run("ls", "--filter", "kind=kernels").stdout
    for shown in ("kernels", "static kernels", "4 operators: add, mul", " 2 ", "60.0 s"):
        assert shown in text
    assert "a.run" in run("show", answer.manifest.entry).stdout


def test_the_commands_load_neither_torch_nor_rich(filled):
    code = """if True:
        import sys
        from npugx_cache.cli import main
        try:
            main(['ls'])
        except SystemExit:
            pass
        print(sorted({'torch', 'rich', 'numpy', 'filelock', 'diskcache'} & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_closed_pipe_is_no_traceback(filled):
    command = f"{sys.executable} -m npugx_cache.cli ls | head -c 1"
    done = subprocess.run(command, shell=True, check=False, capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_help_names_the_commands(run):
    shown = run("--help").stdout
    for command in ("ls", "readable", "prune", "stats", "verify", "doctor", "export", "import"):
        assert command in shown
        assert run(command, "--help").returncode == 0


def test_long_cells_are_cut_on_a_terminal_only(filled, run, on_terminal):
    from npugx_cache.store import Draft

    name = "module." * 20 + "f"
    filled.publish(
        Draft(
            key="e" * 64,
            identity="1d" * 16,
            kind="graph",
            cost_seconds=1.0,
            factors=(),
            about={"function": name},
            blobs={},
        )
    )
    assert name in run("ls").stdout
    code, shown = on_terminal("ls")
    assert code == 0
    assert name not in shown
    assert "…" in shown
