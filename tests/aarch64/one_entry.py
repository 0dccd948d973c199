"""Call a cached module once, and check how the cache of NPUGX_CACHE_DIR answered.

python one_entry.py stored|hit|other_machine

`other_machine`: the only entry was made on the other architecture. The call must compile, and the
reason must name both. Run on both machines, in turn, on one folder.
"""

from __future__ import annotations

import platform
import sys

import torch

from npugx_cache import cache_compile

MACHINES = {"x86_64": "aarch64", "aarch64": "x86_64"}


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x))) + x.tanh()


def main(expected):
    torch.manual_seed(0)
    model, x = Layers().eval(), torch.randn(4, 8)
    with torch.no_grad():
        eager = model(x)
        assert torch.equal(cache_compile(model)(x), eager)
    info = model.forward.cache_info()
    reasons = [reason for each in model.forward.explain() for reason in each.reasons]
    traced = "torch._dynamo.convert_frame" in sys.modules
    counts = f"{info.hits} hits, {info.misses} misses, {info.stored} stored"
    here = platform.machine()
    print(f"{here}: {counts}, {'traced' if traced else 'nothing traced'}; {'; '.join(reasons)}")
    wanted = (1, 0, 0) if expected == "hit" else (0, 1, 1)
    assert (info.hits, info.misses, info.stored) == wanted
    assert traced == (expected != "hit")
    if expected == "other_machine":
        words = f"platform was Linux {MACHINES[here]}, is Linux {here}"
        assert any(words in reason for reason in reasons)


if __name__ == "__main__":
    main(*sys.argv[1:])
