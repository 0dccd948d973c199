"""A function that imports inside hits in a restarted process, where nothing is imported yet."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).with_name("importing.py")
FILES = {
    "late_module.py": "FACTOR = 3.0\n",
    "late_names.py": "def scale(x):\n    import late_factor\n    return x * late_factor.FACTOR\n",
    "late_factor.py": "FACTOR = 4.0\n",
    "late_package/__init__.py": "",
    "late_package/inner.py": "FACTOR = 5.0\n",
    "late_log.py": "NAMES = []\n",
    "late_zulu.py": "import late_log\nlate_log.NAMES.append('zulu')\nFACTOR = 1.0\n",
    "late_alpha.py": "import late_log\nFACTOR = 8.0 if late_log.NAMES == ['zulu'] else 0.0\n",
    "late_caps.py": "import os\nHAS_MORE = os.environ.get('LATE_MORE') == '1'\n",
    "late_more.py": (
        "import os\nif not os.environ.get('LATE_MORE'):\n    raise SystemExit\nFACTOR = 9.0\n"
    ),
    "late_other/__init__.py": "",
    "late_other/inner.py": "FACTOR = 6.0\n",
}
GIVEN = {
    "of_a_module": 3.0,
    "of_a_name": 4.0,
    "of_a_package": 5.0,
    "from_a_package": 6.0,
    "of_pythons_own": 7.0,
    "in_order": 9.0,
    "behind_a_question": 9.0,
}
ALL = [
    *("late_alpha", "late_caps", "late_factor", "late_log", "late_module", "late_more"),
    *("late_names", "late_other", "late_other.inner", "late_package", "late_package.inner"),
    *("late_zulu", "wave"),
]


@pytest.fixture
def start(surroundings):
    for name, text in FILES.items():
        file = surroundings.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    def run(flag, more="1"):
        return surroundings.run(
            SCRIPT, flag, cwd=surroundings.folder, PYTHONDONTWRITEBYTECODE="1", LATE_MORE=more
        )

    return run


def rows(given, counts):
    return {name: [[value, value], counts] for name, value in given.items()}


def test_an_import_inside_is_made_before_the_graph_is_restored(start):
    cold, warm = start("yes"), start("yes")
    assert cold == {"rows": rows(GIVEN, [0, 1, 0]), "imported": ALL}
    assert warm == {"rows": rows(GIVEN, [1, 0, 0]), "imported": ALL}


def test_an_import_in_a_branch_that_is_not_taken_is_not_made(start):
    start("yes")
    other = start("no")
    assert other == {"rows": rows(dict.fromkeys(GIVEN, 2.0), [0, 1, 0]), "imported": []}
    assert start("no") == {"rows": rows(dict.fromkeys(GIVEN, 2.0), [1, 0, 0]), "imported": []}
    assert start("yes")["rows"] == rows(GIVEN, [1, 0, 0])


def test_an_import_behind_a_question_to_another_import_waits_for_the_answer(start):
    start("yes")
    other = start("yes", more=None)
    assert "late_more" not in other["imported"]
    assert other["rows"]["behind_a_question"] == [[101.0, 101.0], [0, 1, 0]]
    assert other["rows"]["in_order"] == [[9.0, 9.0], [1, 0, 0]]


def test_another_module_of_that_name_is_a_miss(start, surroundings):
    start("yes")
    (surroundings.folder / "late_module.py").write_text("FACTOR = 30.0\n")
    (surroundings.folder / "late_factor.py").write_text("FACTOR = 40.0\n")
    edited = start("yes")["rows"]
    assert edited["of_a_module"] == [[30.0, 30.0], [0, 1, 0]]
    assert edited["of_a_name"] == [[40.0, 40.0], [0, 1, 0]]
    assert edited["of_a_package"] == [[5.0, 5.0], [1, 0, 0]]


def test_a_module_that_can_not_be_imported_raises_what_eager_raises(start, surroundings):
    start("yes")
    (surroundings.folder / "late_module.py").unlink()
    (surroundings.folder / "late_factor.py").write_text("raise KeyError('no')\n")
    broken = start("yes")["rows"]
    assert broken["of_a_module"][0] == ["ModuleNotFoundError"] * 2
    assert broken["of_a_name"][0] == ["KeyError"] * 2
    assert broken["from_a_package"] == [[6.0, 6.0], [1, 0, 0]]
