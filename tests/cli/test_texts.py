"""What commands print, word for word: `texts.txt` and `narrow.txt` are transcripts of commands.

`NPUGX_TEST_WRITE=1` writes the files anew; look at what changed before you keep it.
"""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import pytest

from npugx_cache import cli
from npugx_cache.cli import output
from npugx_cache.cli.table import Column, lay_out
from npugx_cache.conditions import Conditions
from npugx_cache.conditions.data import CALL, Kind, Step
from npugx_cache.config import Settings, state_folder
from npugx_cache.entry.artifact import CONDITIONS, pack_conditions
from npugx_cache.entry.break_record import BreakRecord
from npugx_cache.store import Draft, Journal, JournalLine, open_store

HERE = Path(__file__).parent
NOW = time.time() // 60 * 60
CREATED, HIT = NOW - 500_000, NOW - 840
PID = 7777


def conditions(grad_mode, *names):
    """Conditions of a function with these arguments, each of which is a list."""
    checks = {
        Kind.STATE: ((CALL,), ({"grad_mode": grad_mode},)),
        Kind.NOT_NONE: (tuple(range(len(names))), (None,) * len(names)),
    }
    nodes = len(names)
    return Conditions(
        parents=(-1,) * nodes,
        steps=(Step.LOCAL,) * nodes,
        args=names,
        checks=checks,
        idents=(),
        tensors=(),
    )


@pytest.fixture
def ids(root, monkeypatch):
    """The ids of the entries of the store, by names of 12 letters that stand for them in texts."""
    store = open_store(Settings(cache_dir=root))
    found = {}

    def publish(name, kind="graph", cost=20.0, factors=None, size=1000, held=None, **about):
        blobs = {} if kind == "bypass" else {"program": random.Random(size).randbytes(size)}
        if held is not None:
            blobs[CONDITIONS] = pack_conditions(held)
        draft = Draft(
            key=f"{len(found):064x}",
            identity="1d" * 16,
            kind=kind,
            cost_seconds=cost,
            factors=tuple((name, value, "process") for name, value in (factors or {}).items()),
            about={"environment": "cpu x86", **about},
            blobs=blobs,
            uncompressed=frozenset(blobs),
        )
        with monkeypatch.context() as patch:  # `undo` would undo the names of the folders as well
            patch.setattr(time, "time", lambda: CREATED)
            manifest = store.publish(draft).manifest
        used = NOW - (len(found) + 2) * 1000
        path = root / "v1/ac" / draft.key[:2] / draft.key / manifest.entry
        os.utime(path, (used, used))
        found[name] = manifest.entry
        return manifest

    decode = publish(
        "decode......", factors={"torch": "2.13", "backend": "npugraph_ex"},
        held=conditions(False, "x", "mask"), function="model.Decoder.decode",
        signature="f32[1, 16]",
    )  # fmt: skip
    publish(
        "train.......", factors={"torch": "2.14", "backend": "npugraph_ex"}, cost=7300.0,
        size=2_000_000, held=conditions(True, "x", "lengths"), function="model.Decoder.train",
        signature="f32[8, 16]",
    )  # fmt: skip
    bypass = publish(
        "bypass......", kind="bypass", function="model.Decoder.sample", reason="uses aten::rand"
    )
    publish(
        "piece.......", kind="piece", cost=0.5, environment="cuda h100", function="1 inputs: mul"
    )
    publish("nameless....", cost=150.0, environment="cpu x86")
    record = BreakRecord((found["piece......."],), ("print at model.py:3", "item at model.py:5"))
    assert store.write_record(bypass.entry, record.plain()) is None
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: HIT)
        for _ in range(999):
            store.record_hit(decode)
        store.flush()
    os.utime(root / "v1/ac/00" / decode.key / decode.entry, (NOW - 2000, NOW - 2000))
    journal = Journal(str(root), state_folder())
    lines = [
        JournalLine(NOW - 1020, "model.Decoder.decode", "miss", ("x was 1, is 2", "y"), PID),
        JournalLine(NOW - 3600, "model.Decoder.sample", "bypass", ("uses rand",), PID, rank=1),
        JournalLine(
            NOW - 100_020, "model.Decoder.train", "miss", ("x was 1, is 2",), PID, None,
            found["decode......"], found["train......."], 130.0, readonly=True,
        ),
    ]  # fmt: skip
    for line in lines:
        journal.add(line)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: PID)
        journal.flush()
    return found


def text_of(command, ids, root, capsys):
    # Some of the commands remove entries: they must never meet the cache of who runs the tests.
    assert os.environ["NPUGX_CACHE_DIR"] == str(root)
    assert state_folder().is_relative_to(root.parent)
    words = [ids.get(word, word) for word in command.split()]
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    out, err = capsys.readouterr()
    return plain(out + err + (f"exit {ended.value.code}\n" if ended.value.code else ""), ids, root)


def plain(text, ids, root):
    """A text with names for what differs from run to run."""
    text = text.replace(str(root), "FOLDER")
    for name, entry in ids.items():
        text = text.replace(entry, f"<{name}>").replace(entry[:12], name)
    stamps = [NOW - 1020, NOW - 3600, NOW - 100_020, CREATED, HIT]
    for number, stamp in enumerate([*stamps, *(NOW - (n + 2) * 1000 for n in range(5))]):
        text = text.replace(output.moment(stamp), f"{number}..............")
        text = text.replace(repr(float(stamp)), f"{number}...")
    text = re.sub(r"since [\d-]{10} [\d:]{5}", "since ...", text)
    text = re.sub(r"\b1[5-9]\d{8}\.\d+", "...", text)
    text = re.sub(r"(disk[ _]size\W+)[\d.]+( \w?B)?", r"\1...", text)
    return re.sub(r'("disk_size": )\d+', r"\1...", text)


def test_commands_print_the_expected_texts(ids, root, capsys):
    """Those that change the store come last."""
    compare("texts.txt", lambda command: text_of(command, ids, root, capsys))


def test_a_narrow_terminal_gets_the_expected_tables(ids, root, on_terminal):
    """The number before a command is the width of the terminal."""

    def shown(command):
        columns, *words = command.split()
        _, text = on_terminal(*words, COLUMNS=columns, NO_COLOR="1")
        return plain(text.replace("\r\n", "\n"), ids, root)

    compare("narrow.txt", shown)


def compare(name, run):
    """Run the commands of a transcript, and compare what each prints with what stands there."""
    file = HERE / name
    expected = file.read_text(encoding="utf-8")
    commands = re.findall(r"^\$ (.*)$", expected, flags=re.MULTILINE)
    found = "".join(f"$ {command}\n{run(command)}\n" for command in commands)
    if os.environ.get("NPUGX_TEST_WRITE"):
        file.write_text(found, encoding="utf-8")
        expected = found
    assert found == expected


COLUMNS = [
    Column("ID", ["abc", "d"]),
    Column("NAME", ["model.Decoder.forward", "short"], least=8, keeps_end=True),
    Column("HITS", ["1", "1000"], right=True, leaves=2),
    Column("AGE", ["12 days", "1 h"], leaves=1),
    Column("INPUTS", ["float32[1, 16], int64[2]", "bool[]"], least=10),
]


TABLES = """
None: nothing
ID   NAME                   HITS  AGE      INPUTS
d    short                  1000  1 h      bool[]
abc  model.Decoder.forward     1  12 days  float32[1, 16], int64[2]

68: nothing
ID   NAME                   HITS  AGE      INPUTS
d    short                  1000  1 h      bool[]
abc  model.Decoder.forward     1  12 days  float32[1, 16], int64[2]

60: nothing
ID   NAME                HITS  AGE      INPUTS
d    short               1000  1 h      bool[]
abc  …l.Decoder.forward     1  12 days  float32[1, 16], int…

40: nothing
ID   NAME      HITS  AGE      INPUTS
d    short     1000  1 h      bool[]
abc  …forward     1  12 days  float32[1…

39: HITS
ID   NAME        AGE      INPUTS
d    short       1 h      bool[]
abc  …r.forward  12 days  float32[1, 1…

29: HITS, AGE
ID   NAME        INPUTS
d    short       bool[]
abc  …r.forward  float32[1, …

28: HITS, AGE
ID   NAME       INPUTS
d    short      bool[]
abc  ….forward  float32[1, …

20: HITS, AGE
ID   NAME      INPUT
d    short     bool[
abc  …forward  float
"""


@pytest.mark.parametrize("expected", TABLES.strip().split("\n\n"))
def test_a_table_fits_the_terminal(expected):
    width, left_out, *lines = re.split(r": |\n", expected)
    number = None if width == "None" else int(width)
    found = lay_out(COLUMNS, order=[1, 0], width=number)
    assert (found.lines, ", ".join(found.left_out) or "nothing") == (lines, left_out)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (output.size(0), "0 B"),
        (output.size(999), "999 B"),
        (output.size(1000), "1.0 kB"),
        (output.size(999_940), "999.9 kB"),
        (output.size(1_000_000), "1.0 MB"),
        (output.size(2_500_000_000), "2.5 GB"),
        (output.size(1_000_000_000_000), "1.0 TB"),
        (output.size(5e15), "5000.0 TB"),
        (output.count(0, "entry", "entries"), "0 entries"),
        (output.count(1, "entry", "entries"), "1 entry"),
        (output.count(2, "entry", "entries"), "2 entries"),
        (output.seconds(0), "0.0 s"),
        (output.seconds(119.94), "119.9 s"),
        (output.seconds(120), "2.0 min"),
        (output.seconds(7199), "120.0 min"),
        (output.seconds(7200), "2.0 h"),
        (output.moment(float("nan")), "?"),
        (output.moment(1e300), "?"),
        (output.in_line("a\n b\x1b"), "a b\ufffd"),
        (output.in_lines(["a", "b c"]), ["a", "b c"]),
        (output.in_lines(["a", "b  c"]), ["a", "b c"]),
        (output.in_lines(["a", " b"]), ["a", "b"]),
        (output.in_lines(["a ", "b"]), ["a", "b"]),
        (output.in_lines([" a", "b"]), ["a", "b"]),
        (output.in_lines(["a", "b "]), ["a", "b"]),
        (output.in_lines(["a\nb", "c"]), ["a b", "c"]),
        (output.in_lines(["a\tb", "c"]), ["a b", "c"]),
        (output.in_lines([]), []),
    ],
)
def test_numbers_and_lines(text, expected):
    assert text == expected
