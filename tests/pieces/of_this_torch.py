"""Which tests of pieces a torch can run that is served for graphs of others alone."""

from __future__ import annotations

import pytest
import torch

from npugx_cache import version

traces_functions = pytest.mark.skipif(
    version.unserved_torch(torch.__version__) is not None,
    reason="cache_compile does not trace on this torch",
)
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
