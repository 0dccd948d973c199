"""Which tests of pieces an older torch can't run."""

from __future__ import annotations

import pytest
import torch

from npugx_cache import version

saves_graphs = pytest.mark.skipif(
    version.minor_version(torch.__version__) < (2, 12),
    reason="torch.compile(...).aot_compile came with torch 2.12",
)
compiles_in_threads = pytest.mark.skipif(
    version.minor_version(torch.__version__) < (2, 12),
    reason="Dynamo of this torch crashes if threads compile at once, with any backend",
)
exports_sizes = pytest.mark.skipif(
    version.minor_version(torch.__version__) < (2, 13),
    reason="torch.export of this torch can't export the model with a length that varies",
)
