"""The zoo: every row cold, restarted and against eager; and docs/models.md says what came of it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.thorough

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("zoo_page", HERE / "page.py")
page = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(page)
zoo = page.zoo

WHICH = os.environ.get("NPUGX_TEST_ZOO", "often")
# What oneDNN can on this CPU decides what eager runs; refused where a trace has something else.
OF_OTHER_CPUS = {
    "LSTM, bfloat16, forward": not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    "LSTM, float16, forward": torch.ops.mkldnn._is_mkldnn_fp16_supported(),
}
ELSEWHERE = [row for row, is_refused in OF_OTHER_CPUS.items() if is_refused]
OFTEN = [row for row in zoo.rows() if row.often or WHICH == "all"]
WANTED = [row for row in OFTEN if str(row) not in ELSEWHERE]
ROWS = [str(row) for row in WANTED]
CACHED = [str(row) for row in WANTED if row.refused is None]
REFUSED = {str(row): row.refused.reason for row in WANTED if row.refused}


@pytest.fixture(scope="module")
def runs(once):
    def phase(surroundings, seed):
        groups, seed = range(len(zoo.GROUPS)), {"PYTHONHASHSEED": seed}
        workers = [surroundings.start(HERE / "run.py", group, WHICH, **seed) for group in groups]
        return {row: found for worker in workers for row, found in worker.result(590).items()}

    def phases(surroundings):
        # Two seeds under which {"full_attention", "sliding_attention"} is walked in another order.
        return {"cold": phase(surroundings, "1"), "warm": phase(surroundings, "3")}

    return once("zoo", phases)


@pytest.mark.parametrize("row", ROWS)
def test_a_model_gives_eagers_results_cold_and_restarted(runs, row):
    cold, warm = runs["cold"][row], runs["warm"][row]
    assert "error" not in cold, cold["error"]
    assert "error" not in warm, warm["error"]
    assert cold["difference"] is None
    assert warm["difference"] is None
    assert warm["digest"] == cold["digest"], "restored and cold differ in a bit"


@pytest.mark.parametrize("row", CACHED)
def test_a_restarted_model_is_neither_traced_nor_refused(runs, row):
    cold, warm = runs["cold"][row], runs["warm"][row]
    assert cold["bypasses"] == 0, cold["warnings"]
    assert cold["frames"] > 0, "nothing was traced cold: the counter is dead"
    assert (warm["misses"], warm["bypasses"]) == (0, 0), [warm["reasons"], warm["warnings"]]
    assert warm["hits"] > 0
    assert (warm["frames"], warm["loaded"]) == (0, [])
    assert cold["warnings"] == warm["warnings"] == []


@pytest.mark.parametrize("row", REFUSED)
def test_a_refusal_names_its_construct(runs, row):
    for run in (runs["cold"][row], runs["warm"][row]):
        assert run["bypasses"] > 0
        (warning,) = run["warnings"]
        assert REFUSED[row] in warning


@pytest.mark.parametrize("row", ROWS)
def test_the_page_says_what_the_run_gives(runs, row):
    shown = page.cells_of(page.own_part(page.PAGE.read_text()))
    assert shown[row] == page.cell(runs["cold"][row], runs["warm"][row]), (
        "run: python tests/models/page.py"
    )


def test_the_page_is_made_from_the_table_of_models():
    text = page.own_part(page.PAGE.read_text())
    shown = page.cells_of(text)
    assert set(shown) == {str(row) for row in zoo.rows()}
    assert text == page.render(shown)
