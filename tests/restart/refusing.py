"""Functions that can't be stored, called in a process of their own: `python refusing.py NAME`.

Prints the counts, how often Dynamo traced, and whether each result is eager's. What the functions
depend on outside of this file is in `refusing_helper.py` beside the working directory's copy.
"""

import json
import logging
import sys
from pathlib import Path

import torch

from npugx_cache import cache_compile

sys.path.insert(0, str(Path.cwd()))


class Records(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def untraceable(x, n=1):
    import refusing_helper

    return refusing_helper.helper(x) * n


class Unstorable(torch.nn.Module):
    """Traced, but the keys of its dict have no name in another process."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.table = {object(): 2.0}

    def forward(self, x):
        for value in self.table.values():
            x = x * value
        return self.linear(x)


class Flagged(torch.nn.Module):
    def __init__(self, noisy):
        super().__init__()
        self.noisy = noisy

    def forward(self, x):
        if self.noisy:
            print(end="")
        return x + 1


def by_text(x, mode):
    if mode == "print":
        print(end="")
    return x + 1


def by_number(x, n):
    if n > 100:
        print(end="")
    return x + n


class Config:
    def __init__(self, noisy):
        self.noisy = noisy

    def run(self, x):
        if self.noisy:
            print(end="")
        return x + 1


def choose():
    """Each function is refused with one value and compiled with another."""
    x = torch.ones(3)
    bound = cache_compile(Config(True).run), cache_compile(Config(False).run)
    functions = {each: cache_compile(each) for each in (by_text, by_number)}
    right = [torch.equal(call(x), x + 1) for call in bound]
    for function, values in [
        (by_text, ["print", "fast"]),
        (by_number, [101, 3]),
    ]:
        right += [torch.equal(functions[function](x, v), function(x, v)) for v in values]
    every = [call.cache_info()[:4] for call in (*bound, *functions.values())]
    counts = [sum(each) for each in zip(*every, strict=True)]
    return {"right": all(right), "traces": traces(), "counts": counts}


def traces():
    if "torch._dynamo" not in sys.modules:
        return 0
    from torch._dynamo.utils import compilation_time_metrics

    return len(compilation_time_metrics.get("npugx_cache.capture", ()))


def run(name):
    torch.manual_seed(0)
    x = torch.arange(6.0).reshape(3, 2)
    if name == "numbers":
        plain, calls = untraceable, [(x, n) for n in (3, 4, 5, 6)]
    elif name == "untraceable":
        plain, calls = untraceable, [(x,), (x[:2],)]
    elif name == "unstorable":
        plain, calls = Unstorable().eval(), [(x,), (x[:2],)]
    else:
        plain, calls = Flagged(name == "noisy"), [(x,)]
    if isinstance(plain, torch.nn.Module):
        with torch.no_grad():
            wanted = [plain(*each) for each in calls]
        cached = cache_compile(plain)
        info = plain.forward.cache_info
    else:
        wanted = [plain(*each) for each in calls]
        cached = cache_compile(plain)
        info = cached.cache_info
    right = [torch.equal(cached(*call), want) for call, want in zip(calls, wanted, strict=True)]
    counts = info()
    return {"right": all(right), "traces": traces(), "counts": list(counts[:4])}


if __name__ == "__main__":
    records = Records()
    logging.getLogger("npugx_cache").addHandler(records)
    row = choose() if sys.argv[1] == "choices" else run(sys.argv[1])
    print(json.dumps({**row, "warnings": records.texts, "dynamo": "torch._dynamo" in sys.modules}))
