"""The pages of `npugx-cache report`, as text. `tests/report` opens them in a browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from npugx_cache.cli import report
from npugx_cache.config import state_folder
from npugx_cache.store import Journal, JournalLine

pytestmark = pytest.mark.thorough

LIBRARIES = Path(report.__file__).parent / "assets" / "libraries"
HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)><!--"


class Page(HTMLParser):
    """What a page holds: its tags, its text, and the data for its scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data: dict[str, object] = {}
        self.text = ""
        self._inside = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self._inside = attributes.get("id") or "" if tag == "script" else ""

    def handle_endtag(self, tag):
        if tag == "script":
            self._inside = ""

    def handle_data(self, data):
        if self._inside:
            self.data[self._inside] = json.loads(data)
        else:
            self.text += data

    def links(self):
        return [value for _, at in self.tags for name, value in at.items() if name == "href"]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "pages"


@pytest.fixture
def pages(run, out):
    """Write a report and read all its pages."""

    def written(*options):
        done = run("report", "--out", out, *options)
        assert (done.returncode, done.stderr) == (0, "")
        return {path.name: Page(path) for path in out.glob("*.html")}, done.stdout

    return written


def note(root, **values):
    journal = Journal(str(root), state_folder())
    line = JournalLine(time.time(), "m.f", "miss", ("x was 1, is 2",), os.getpid())
    journal.add(line._replace(**values))
    journal.flush()


def test_there_is_a_page_for_each_entry_and_the_first_page_lists_them(filled, run, pages, out):
    found, said = pages()
    rows = json.loads(run("ls", "--format", "json").stdout)["entries"]
    assert said.splitlines()[-1] == f"{len(found)} pages about 3 entries: {out}/index.html"
    index = found["index.html"]
    for row in rows:
        assert f"entry-{row['entry']}.html" in index.links()
        assert row["function"] in index.text
        assert row["function"] in found[f"entry-{row['entry']}.html"].text
    assert "uses aten::rand" in index.text
    assert "40.0 s" not in index.text
    assert "60.0 s" in index.text  # three hits of an entry that took 20 s
    days = index.data["days"]
    assert (days["entries"][-1], days["made"][-1], days["hits"][-1]) == (3, 3, 3)


def test_every_link_leads_to_a_file_of_the_report(filled, publish, root, pages, out):
    for number in range(3):
        publish("5", function="m.f", signature=f"float32[{number}]")
    note(root, nearest="ab" * 32)
    found, _ = pages()
    for page in found.values():
        for tag, attributes in page.tags:
            for name in ("href", "src"):
                target = attributes.get(name)
                if target and not target.startswith(("#", "data:,")):
                    assert (out / target).is_file(), (tag, target)
                    assert re.fullmatch(r"[\w./-]+", target)


def test_texts_of_a_store_are_texts_of_the_page_and_nothing_else(publish, root, pages):
    for number, kind in enumerate(("graph", "bypass", "graph")):
        about = {"function": HOSTILE, "signature": HOSTILE, "reason": HOSTILE}
        entry = publish(str(number), kind=kind, environment=HOSTILE, **about)
    phases = ((HOSTILE, 1.5), ("packing", 0.5))
    note(root, function=HOSTILE, reasons=(HOSTILE,), stored=entry, nearest=entry, phases=phases)
    found, _ = pages()
    assert len(found) == 8
    for name, page in found.items():
        assert "img" not in {tag for tag, _ in page.tags}
        for tag, attributes in page.tags:
            assert not any(each.startswith("on") for each in attributes)
            if tag == "script":
                assert ("src" in attributes) is not (attributes.get("type") == "application/json")
        if name != "differences.html":
            assert HOSTILE in page.text, name
    assert found[f"entry-{entry}.html"].data["phase-data"] == [[HOSTILE, 1.5], ["packing", 0.5]]


def test_control_characters_are_replaced(publish, root, pages):
    publish("7", function="red \x1b[31m \u202e", signature="\x00 \u2066")
    note(root, reasons=("red \x1b[31m \u202e",))
    found, _ = pages()
    for page in found.values():
        assert page.text.replace("\n", "").isprintable()


def test_pages_load_nothing_from_a_network(filled, pages, out):
    found, _ = pages()
    for page in found.values():
        (policy,) = (at["content"] for _, at in page.tags if "http-equiv" in at)
        assert policy.startswith("default-src 'none'; ")
        assert "http" not in policy
    own = [path for path in (out / "assets").iterdir() if path.is_file()]
    assert {path.suffix for path in own} == {".js", ".css"}
    for path in own:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?:|//\w+\.|fetch\(|XMLHttpRequest|import\(|@import|url\(", text)


def test_damaged_entries_are_listed_with_the_reason(filled, publish, root, run, pages):
    (manifest, *_) = sorted(path for path in root.glob("v1/ac/*/*/*") if path.is_file())
    manifest.write_bytes(manifest.read_bytes()[:-10])
    found, said = pages()
    (bad,) = json.loads(run("ls", "--format", "json").stdout)["unreadable"]
    assert bad["reason"] in found["index.html"].text
    # The other graph holds random bytes; its page, the first page and the command say so.
    (damaged,) = (line for line in said.splitlines() if "damaged: " in line)
    reason = damaged.partition("damaged: ")[2]
    assert "make no sense" not in reason
    assert reason in found["index.html"].text
    (page,) = (page for name, page in found.items() if name.startswith(f"entry-{damaged[:12]}"))
    assert reason in page.text


def test_a_filter_and_a_limit_choose_entries(filled, pages):
    found, said = pages("--filter", "kind=bypass")
    assert "1 entry: " in said
    assert sum(name.startswith("entry-") for name in found) == 1
    found, _ = pages("--limit", "2")
    assert sum(name.startswith("entry-") for name in found) == 2
    assert "These are the 2 that were used last, of 3" in found["index.html"].text


def test_neighbours_of_one_function_are_compared_up_to_a_bound(publish, pages):
    ids = [
        publish("a", function="m.f", factors=(("torch", f"2.{number}", "process"),))
        for number in range(53)
    ]
    found, _ = pages()
    differences = [page for name, page in found.items() if name.startswith("difference-")]
    assert len(differences) == 50
    assert "50 pairs; 2 more are not compared" in " ".join(found["differences.html"].text.split())
    texts = [" ".join(page.text.split()) for page in differences]
    assert any("torch was 2.51, is 2.52" in text for text in texts)
    assert any(ids[-1][:12] in text for text in texts)


def test_the_answer_as_json(filled, run, out):
    done = run("report", "--out", out, "--format", "json")
    said = json.loads(done.stdout)
    assert said["index"] == str(out / "index.html")
    assert (said["entries"], said["unreadable"], said["differences"]) == (3, 0, 0)
    assert said["pages"] == len(list(out.glob("*.html"))) == 6
    assert len(said["damaged"]) == 2  # random bytes are no graph


def test_an_earlier_report_is_replaced_as_a_whole(filled, publish, run, pages, out):
    pages()
    before = set(out.glob("entry-*"))
    run("prune", "--all", "--yes")
    entry = publish("b", function="m.new")
    found, _ = pages()
    assert [name for name in found if name.startswith("entry-")] == [f"entry-{entry}.html"]
    assert len(before) == 3
    assert [path.name for path in out.parent.iterdir() if "pages" in path.name] == ["pages"]


@pytest.mark.parametrize(
    "made", ["a file", "a folder", "a report with a file of the user", "a link"]
)
def test_what_is_no_report_is_never_replaced(filled, run, out, made):
    if made == "a file":
        kept = out
    elif made == "a folder":
        kept = out / "thesis.tex"
        out.mkdir()
    elif made == "a link":
        kept = out.parent / "elsewhere" / "index.html"
        run("report", "--out", kept.parent)
        out.symlink_to(kept.parent)
    else:
        run("report", "--out", out)
        kept = out / "assets" / "notes.txt"
    kept.write_text("kept")
    done = run("report", "--out", out)
    assert done.returncode == 2
    assert done.stderr.startswith(f"Error: --out {out} ")
    assert done.stderr.rstrip().endswith("Name a new folder") or made in {"a file", "a link"}
    assert "Traceback" not in done.stderr
    assert kept.read_text() == "kept"


@pytest.mark.parametrize("place", [".", "../pages", "assets/.."])
def test_a_report_is_replaced_from_inside_of_it(filled, publish, run, pages, out, place):
    pages()
    entry = publish("b", function="m.new")
    done = run("report", "--out", place, "--format", "json", cwd=out)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["index"] == str(out / "index.html")
    assert (out / f"entry-{entry}.html").exists()
    assert [path.name for path in out.parent.iterdir() if "pages" in path.name] == ["pages"]


def test_an_empty_folder_is_taken(filled, pages, out):
    out.mkdir()
    found, _ = pages()
    assert "index.html" in found


def test_no_cache_is_one_clear_error(run, out):
    done = run("report", "--out", out)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no cache" in done.stderr
    assert not out.exists()


WITHOUT = """
import runpy, sys
sys.modules["jinja2"] = None
runpy.run_module("npugx_cache.cli", run_name="__main__", alter_sys=True)
"""


def test_a_missing_library_is_one_clear_error(filled, out):
    command = [sys.executable, "-c", WITHOUT, "report", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr == (
        "Error: the pages are made with jinja2, not installed here. "
        "Do: pip install 'npugx_cache[report]'\n"
    )
    assert not out.exists()


def test_libraries_are_small_and_have_their_licences():
    table = (LIBRARIES / "README.md").read_text()
    row = re.compile(r"^\| (\S+) \| [^|]+ \| [\d.]+ \| [\w.-]+ \((\S+)\) \| https://", re.MULTILINE)
    rows = row.findall(table)
    files = {path.name for path in LIBRARIES.iterdir()} - {"README.md"}
    assert {name for name, _ in rows} == {name for name in files if ".LICENSE" not in name}
    assert {licence for _, licence in rows} == {name for name in files if ".LICENSE" in name}
    assert sum(path.stat().st_size for path in LIBRARIES.iterdir()) < 1_500_000
