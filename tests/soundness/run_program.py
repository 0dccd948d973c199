"""Run the programs of a file in all phases and print what became of each.

python tests/soundness/run_program.py FILE

The file is in the notation of `matrix.py`: `### name`, then a row. A failure of
`test_random_programs.py` leaves one.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import Surroundings
from outcomes import OF_NOTHING, outcomes


def main(path: str) -> int:
    _, *blocks = re.split(r"^### .*\n", Path(path).read_text(), flags=re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        surroundings = Surroundings(Path(folder))
        found = outcomes(surroundings, [OF_NOTHING._replace(text=text) for text in blocks], live=1)
        surroundings.close()
    for outcome in found:
        print(f"{outcome.kind}: {outcome.fault or 'equal to eager'}\n{outcome.warning}")
    return int(any(outcome.fault for outcome in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
