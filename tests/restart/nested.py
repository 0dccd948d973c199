"""Cached functions inside cached and compiled ones; prints JSON.

For each case: is the result that of eager; hits, misses and bypasses of the outer one; how often
the inner ones were looked up.
"""

import json
import logging
import warnings

import torch
from torch import nn

from npugx_cache import cache_compile, version

LINES = []
TRACES_METHODS = version.minor_version(torch.__version__) >= (2, 13)
"""Whether torch traces `function.__get__`: older ones leave cached methods out of their graphs."""


class Collected(logging.Handler):
    def emit(self, record):
        LINES.append(record.getMessage())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @cache_compile
    def forward(self, x):
        return self.linear(x).relu()


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Steps(nn.Module):
    """As the vendor's examples do it: the parts are cached where the model is made."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.prompt = cache_compile(self.first)
        self.decode = cache_compile(self.other)

    def first(self, x):
        return self.linear(x) * 2

    def other(self, x):
        return self.linear(x) + 1

    def forward(self, x):
        return self.decode(self.prompt(x))


class Plain:
    @cache_compile
    def tripled(self, x):
        return x * 3

    @cache_compile
    def run(self, x):
        return self.tripled(x) + 1


@cache_compile
def doubled(x):
    return x * 2


def inner_of(module):
    found = [doubled, *(vars(module).get(name) for name in ("prompt", "decode"))]
    for each in module.modules():
        forward = vars(each).get("forward")
        found.append(forward if forward is not None and each is not module else None)
        bound = getattr(vars(type(each)).get("forward"), "_bound", {})
        found += [state for _, state in bound.values()]
    return [each for each in found if each is not None]


def lookups(inner):
    infos = [e.cache_info() if hasattr(e, "cache_info") else e.info() for e in inner]
    return sum(info.hits + info.misses + info.bypasses for info in infos)


def measured(outer, run, expected, inner=()):
    with torch.no_grad():
        same = torch.equal(run(), expected)
    info = outer.cache_info()
    return [same, info.hits, info.misses, info.bypasses, lookups(inner)]


def cached_cases(x):
    plain = Blocks()
    for block in plain.blocks:
        block.forward = Block.forward.__wrapped__.__get__(block)
    blocks, steps, two = cache_compile(Blocks()), cache_compile(Steps()), Plain()
    torch.manual_seed(0)
    linear = nn.Linear(4, 4)
    row = nn.Sequential(cache_compile(linear), nn.ReLU())
    with torch.no_grad():
        expected = plain(x)
        of_steps = steps.linear(steps.linear(x) * 2) + 1
        of_row = nn.functional.linear(x, linear.weight, linear.bias).relu()
    sequence = cache_compile(row)
    around = cache_compile(lambda x: doubled(x) + 1)
    return {
        "methods": measured(blocks.forward, lambda: blocks(x), expected, inner_of(blocks)),
        "bound methods": measured(steps.forward, lambda: steps(x), of_steps, inner_of(steps)),
        "module": measured(sequence.forward, lambda: sequence(x), of_row, inner_of(row)),
        "function": measured(around, lambda: around(x), x * 2 + 1, [doubled]),
        "no module": measured(two.run, lambda: two.run(x), x * 3 + 1, [two.tripled]),
    }


def compiled_cases(x):
    """Of what others trace there are no entries."""
    model = Blocks()
    if not TRACES_METHODS:
        warnings.simplefilter("ignore")  # torch says what it does not trace
    with torch.no_grad():
        expected = torch.compile(model, backend="eager", fullgraph=TRACES_METHODS)(x)
        strict = (True, False) if TRACES_METHODS else (False,)
        exported = [torch.export.export(model, (x,), strict=s).module()(x) for s in strict]
        top = cache_compile(nn.Linear(4, 4))
        of_top = [torch.export.export(top, (x,), strict=s).module()(x) for s in (True, False)]
        linear = nn.functional.linear(x, top.weight, top.bias)
    counted = lookups([*inner_of(model), top.forward])
    return {
        "eager": torch.equal(expected, model(x)),
        "export": [torch.allclose(each, expected) for each in exported],
        "export of a cached module": [torch.allclose(each, linear) for each in of_top],
        "lookups": counted,
    }


def replaced_cases(x):
    compiled = torch.compile(Blocks(), backend="eager")
    model = cache_compile(compiled)
    function = cache_compile(torch.compile(Blocks.__init__, backend="eager"))
    return {
        "what was compiled": measured(model.forward, lambda: model(x), Blocks()(x).detach()),
        "type": type(model).__name__,
        "function": function.__wrapped__ is Blocks.__init__,
    }


def main():
    warnings.simplefilter("error")
    logging.getLogger("npugx_cache").addHandler(Collected(logging.WARNING))
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    answer = {"cached": cached_cases(x), "lines": list(LINES)}
    answer |= {"replaced": replaced_cases(x), "said": LINES[len(answer["lines"]) :]}
    print(json.dumps({**answer, "compiled": compiled_cases(x)}))


if __name__ == "__main__":
    main()
