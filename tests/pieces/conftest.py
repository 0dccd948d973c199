"""Pieces are compiled in threads of the test's own process, too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from of_this_torch import let_threads_compile

let_threads_compile()
