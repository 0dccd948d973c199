from __future__ import annotations

import csv
import io
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
    for shown in ("graph", "f32[1, 16]", " 3 ", "60.0 s", "2.4 kB"):
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
    ("order", "first"),
    [
        ("hits", "f1"),
        ("size", "f1"),
        ("created", "f2"),
        ("used", "f1"),
        ("name", "f0"),
        ("saved", "f1"),
    ],
)
def test_ls_sorts_by_what_is_asked(filled, run, order, first):
    rows = json.loads(run("ls", "--format", "json", "--sort", order).stdout)["entries"]
    assert rows[0]["function"].endswith(first)
    others = json.loads(run("ls", "--format", "json", "--sort", order, "--reverse").stdout)
    assert others["entries"][-1]["function"].endswith(first)


def test_ls_sorts_by_cost(filled, run, publish):
    publish("e", function="dear", cost_seconds=99.0)
    publish("f", function="cheap", cost_seconds=1.0)
    options = ("--format", "json", "--sort", "cost")
    rows = json.loads(run("ls", *options).stdout)["entries"]
    assert (rows[0]["function"], rows[-1]["function"]) == ("dear", "cheap")
    rows = json.loads(run("ls", *options, "--reverse", "--limit", "1").stdout)["entries"]
    assert [row["function"] for row in rows] == ["cheap"]


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
    assert "@cache_compile" in done.stdout
    assert "--dir" in done.stdout
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


def test_long_cells_are_cut_on_a_terminal_only(run, on_terminal, publish):
    name = "module." * 20 + "f"
    publish("e", function=name)
    assert name in run("ls").stdout
    code, shown = on_terminal("ls")
    assert code == 0
    assert name not in shown
    assert "…" in shown


@pytest.mark.parametrize("columns", [20, 60, 100, 200])
def test_the_table_fits_the_terminal_and_keeps_the_end_of_names(on_terminal, publish, columns):
    prefix = "transformers.models.qwen3.modeling_qwen3."
    for key, name in (("a", "Qwen3ForCausalLM.forward"), ("b", "Qwen3Model.embed")):
        signature = ", ".join(f"argument_{number}: int64[1, *]" for number in range(20))
        publish(key, function=prefix + name, signature=signature, environment=f"torch{key} x86_64")
    code, shown = on_terminal("ls", COLUMNS=str(columns))
    assert code == 0
    heading, *rows = shown.replace("\r\n", "\n").split("\n")[:3]
    assert heading.startswith("ENTRY")
    assert max(map(len, [heading, *rows])) <= columns
    if columns >= 60:
        assert any("LM.forward" in row for row in rows)
        assert any("odel.embed" in row for row in rows)
        assert "INPUTS" in heading
    assert ("ENVIRONMENT" in heading) == (columns == 200)
    assert ("not shown here: " in shown) == (columns < 200)


def test_what_fits_is_not_cut(on_terminal, publish):
    publish("a", function="model.f", signature="x: int64[1, *]")
    _, shown = on_terminal("ls", COLUMNS="200")
    assert "…" not in shown
    assert "x: int64[1, *]" in shown


def test_an_environment_that_is_the_same_for_all_is_said_once(filled, run, publish):
    shown = run("ls").stdout
    assert shown.count("cpu x86") == 1
    assert "ENVIRONMENT" not in shown
    publish("e", function="f", environment="npu arm")
    shown = run("ls").stdout
    assert shown.count("cpu x86") == 3
    assert "ENVIRONMENT" in shown


def test_quiet_prints_whole_ids_for_other_commands(filled, run):
    done = run("ls", "-q", "--filter", "kind=graph", "--sort", "name")
    entries = done.stdout.split()
    assert [len(entry) for entry in entries] == [64, 64]
    assert run("rm", *entries, "--yes").returncode == 0
    assert "1 entry" in run("ls").stdout
    assert run("ls", "-q", "--format", "json").returncode == 2


def test_csv_has_the_fields_of_the_json_form(filled, run, publish):
    publish("e", function="f\x1b]0;owned\x07", signature='x: int64[1, *], y: "a"')
    rows = list(csv.DictReader(io.StringIO(run("ls", "--format", "csv").stdout)))
    listed = json.loads(run("ls", "--format", "json").stdout)["entries"]
    assert len(rows) == len(listed) == 4
    for row, fields in zip(rows, listed, strict=True):
        assert fields.keys() <= row.keys()
        for name in ("entry", "key", "kind", "hits", "size"):
            assert row[name] == str(fields[name])
    (ours,) = [row for row in rows if row["key"] == "e" * 64]
    assert ours["signature"] == 'x: int64[1, *], y: "a"'
    assert "\x1b" not in ours["function"]


FACTORS = (
    ("backend", "inductor", "process"),
    ("dynamic", "True", "process"),
    ("option.capture_limit", "256", "lookup"),
)


@pytest.mark.parametrize(
    ("tests", "found"),
    [
        (["function=forward"], {"a.Net.forward"}),
        (["function=Net.*"], {"a.Net.forward"}),
        (["function=N*"], set()),
        (["function!=forward"], {"scale"}),
        (["function=a.*"], {"a.Net.forward"}),
        (["input=int64[1, *]"], {"a.Net.forward"}),
        (["input=int64[1]"], set()),
        (["input!=float"], {"a.Net.forward"}),
        (["reason=dropout"], set()),
        (["environment=torch2.13"], {"a.Net.forward"}),
        (["backend=inductor"], {"a.Net.forward"}),
        (["backend!=inductor"], {"scale"}),
        (["dynamic=True"], {"a.Net.forward"}),
        (["option=capture_limit=256"], {"a.Net.forward"}),
        (["option=capture_limit=2"], set()),
        (["option=capture*", "function=scale"], set()),
    ],
)
def test_filters_on_what_an_entry_was_made_of(run, publish, tests, found):
    publish(
        "a",
        function="a.Net.forward",
        signature="x: int64[1, 7], n: 3",
        environment="py3.11.7 torch2.13.0+cpu x86_64",
        backend="inductor",
        factors=FACTORS,
    )
    publish("b", function="scale", signature="x: float32[2]", backend="aot_eager")
    options = [part for text in tests for part in ("--filter", text)]
    listed = json.loads(run("ls", *options, "--format", "json").stdout)["entries"]
    assert {row["function"] for row in listed} == found


def test_a_reason_is_a_filter(filled, run):
    shown = run("ls", "--filter", "reason=rand").stdout
    assert "Decoder.f2" in shown
    assert "1 entry (1 bypass)" in shown


def test_an_unknown_filter_says_which_there_are(filled, run):
    done = run("ls", "--filter", "colour=red")
    assert done.returncode == 2
    assert "there is no filter 'colour'" in done.stderr
    for name in ("backend", "input", "option", "reason", "environment", "size", "hits"):
        assert name in done.stderr


def test_filters_that_nothing_passes_say_how_many_entries_there_are(filled, run):
    assert "None of 3 passes the filters" in run("ls", "--filter", "kind=kernels").stdout
