"""Which tests of pieces an older torch can't run."""

from __future__ import annotations

import pytest
import torch

from npugx_cache import version

saves_graphs = pytest.mark.skipif(
    version.minor_version(torch.__version__) < (2, 12),
    reason="torch.compile(...).aot_compile came with torch 2.12",
)
exports_sizes = pytest.mark.skipif(
    version.minor_version(torch.__version__) < (2, 13),
    reason="torch.export of this torch can't export the model with a length that varies",
)


def let_threads_compile():
    """Builds of torch 2.10 and 2.11 for CUDA crash in two threads that trace where no GPU is.

    They look for the guard of the CUDA device in each of them, with any backend of `torch.compile`.
    """
    if version.minor_version(torch.__version__) < (2, 12) and not torch.cuda.is_available():
        torch._C._ensureCUDADeviceGuardSet = lambda: None
