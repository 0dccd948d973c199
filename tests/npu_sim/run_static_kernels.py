"""Call a function with static kernels in a process of its own, and print what happened, as JSON.

python run_static_kernels.py FOLDER FUNCTION
"""

import json
import logging
import sys

import npu_sim
import simulated_cann
import torch

from npugx_cache import cache_compile
from npugx_cache.backend.static_kernels.installed import INSTALLED


class Warned(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


warned = Warned()
logging.getLogger("npugx_cache").addHandler(warned)
function = getattr(simulated_cann, sys.argv[2])
cached = cache_compile(
    function, dynamic=True, options=simulated_cann.ON, cache_dir=sys.argv[1], strict=True
)
x, y = torch.ones(3, 2).npu(), torch.ones(5).npu()
with npu_sim.issued() as found:
    right = torch.equal(cached(x, y), function(x, y))
print(
    json.dumps(
        {
            "right": right,
            "issued": [[each.what, each.on] for each in found],
            "compiler": "torch._dynamo" in sys.modules,
            "folder": INSTALLED._own and str(INSTALLED._own),
            "warned": warned.texts,
        }
    )
)
