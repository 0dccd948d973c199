"""docs/options.md says what the code does."""

from pathlib import Path

from npugx_cache.backend.ge import options as ge
from npugx_cache.backend.options import SPECS
from npugx_cache.backend.options.page import render

PAGE = Path(__file__).parents[2] / "docs" / "options.md"


def test_the_committed_page_is_the_one_that_the_table_makes():
    assert PAGE.read_text() == render(), (
        "run: python -m npugx_cache.backend.options.page > docs/options.md"
    )


def test_every_option_has_a_row_with_its_effect_and_devices():
    page, _ = render().split("\n## GE mode\n")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(SPECS)
    assert all(len(row.strip("|").split(" | ")) == 6 for row in rows)


def test_every_option_stands_in_a_group_with_a_heading():
    first, *groups = render().split("\n## ")
    assert "| `" not in first
    assert [group.split("\n")[0] for group in groups] == [
        "Graph passes",
        "Capture and replay",
        "Kernels of the NPU",
        "Looking inside",
        "GE mode",
    ]
    assert all("\n| `" in group for group in groups)


def test_every_option_of_ge_mode_has_a_row():
    _, section = render().split("\n## GE mode\n")
    rows = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert rows == [*ge.SERVED, *ge.REFUSED]
