"""Random small programs and a random change, as rows of the matrix.

A program is a module whose forward goes through operators, control flow over Python values,
containers, aliases and writes; its run returns all that a caller could see afterwards.
"""

from __future__ import annotations

from hypothesis import strategies as st
from matrix import parse

INDENT = " " * 8
NUMBERS = (
    "self.k",
    "self.items[0]",
    "self.table['a']",
    "len(self.items)",
    "SCALE",
    "n",
    "2",
    "0.5",
)
TENSORS = ("x", "y", "self.weight")
CONDITIONS = (
    "self.flag",
    "n > 2",
    "self.k == 2",
    "'b' in self.table",
    "isinstance(self.k, int)",
    "x is y",
    "x.dtype == torch.float32",
    "x.shape[0] > 3",
    "x.is_contiguous()",
    "self.training",
    "hasattr(self, 'extra')",
    "mode == 'a'",
    "n",
    "y.requires_grad",
    "self.items",
    "len(log) > 1",
    "SCALE is not None and SCALE > 2",
    "type(self.k) is bool",
    "list(self.table) == ['a', 'b']",
    "17 in self.kinds",
    "'a' in set(self.table)",
    "len(Shape.__subclasses__()) > 1",
    "level() > 2",
)
ITERATIONS = (
    "self.items",
    "self.table.values()",
    "range(n)",
    "(1, 2)",
    "[len(key) for key in self.table]",
    "reversed(self.items)",
    "sorted(self.items)",
    "[v for pair in zip(self.items, self.table.values()) for v in pair]",
    "self.kinds",
    "{*self.items, 40}",
)
STEPS = (
    "{t} = {t} * {v}",
    "{t} = {t} + {u}",
    "{t} = torch.relu({t}) - {v}",
    "{t} = helper({t}, {v})",
    "{t} = self.method({t})",
    "{t} = self.linear({t})",
    "{t} = {t}.t()",
    "{t} = {t}[0] + {u}",
    "{t} = {t}.reshape(-1)[: {u}.shape[0]] + {u}",
    "{t} = torch.cat([{t}, {u}])[: {t}.shape[0]]",
    "{t} = {t}.to(self.weight.dtype)",
    "{t} = {t}.double()",
    "{t} = {t} * {t}.shape[0]",
    "{t}, {s} = {s}, {t}",
    "z = {t}; z.add_({v}); {s} = {s} + z",
    "{s} = {t}",
    "{t}.mul_(2)",
    "{t}[0] = {v}",
    "{t}[0].add_(1)",
    "self.buffer.add_(1)",
    "self.count += 1",
    "self.last = {v}",
    "self.items.append({v})",
    "self.items[0] = 5",
    "self.table['new'] = {v}",
    "self.table.pop('b', None)",
    "log.append({v})",
    "log.append({t} + 1)",
    "{t} = {t} + self.buffer",
    "{t} = functools.reduce(operator.add, self.items, {t})",
    "{t} = {t} + sum(v for v in self.items if v)",
    "{t} = (lambda q: q * SCALE)({t})",
    "{t} = torch.where({t} > 0, {t}, {u})",
    "{t} = {t} * getattr(self, 'extra', 3)",
    "{t} = {t} * {{'a': 2, 'b': 3}}.get(mode, 4)",
    "{t} = {t}.clone() if self.flag else {t}",
    "{t} = self.partial({t})",
    "{t} = functools.partial(helper, more={v})({t}, 2)",
    "{t} = {t} * level()",
    "{t} = {t} * len(Shape.__subclasses__())",
    "names = set(self.table); {t} = {t} + len([name for name in ('a', 'c') if name in names])",
    "self.kinds.add(40)",
    "self.kinds |= {{2, 33}}",
    "{t} = {t} + len(self.kinds)",
    "unread = f'{{self.kinds}}'",
    "{t} = einops.rearrange({t}, '... a -> ... a 1').flatten(-2) * {v}",
    "{t} = einops.reduce({t}, '... a -> ... 1', 'max') + {u}",
    "{t} = {t} + einops.repeat(self.weight, 'a -> (b a)', b=2)[:3]",
    "{t} = {t} + {u}.nonzero().shape[0]",
    "{t} = {t} + {u}[{u} > {v}].sum()",
    "{t} = {t} + {t}.reshape(-1)[: ({u} > 0).sum().item()].sum()",
    "kept = {t}[{t} > 0]; {t} = {t} + kept.reshape(-1)[:1].sum() * kept.shape[0]",
    "{t} = {t} + torch.where({u} > 0)[0].squeeze(0).sum()",
    "{t} = torch.func.functional_call(self.linear, {{'bias': self.weight}}, ({t},))",
)
RESULTS = (
    "x",
    "(x, y)",
    "[y, x, self.count]",
    "{'x': x, 'n': n}",
    "x, log",
    "self.buffer + x.sum()",
)
CHANGES = (
    "pass",
    "model.k = 3",
    "model.k = True",
    "model.k = 2.0",
    "model.flag = not model.flag",
    "model.items.append(4)",
    "model.items[0] = 7",
    "model.items = ()",
    "model.items = tuple(model.items)",
    "model.table['a'] = 9",
    "model.table['c'] = 1",
    "model.table = {'b': 2, 'a': 1}",
    "model.table.pop('b')",
    "model.extra = 6",
    "model.unused = 6",
    "model.train()",
    "model.double()",
    "model.linear.weight.data.mul_(2)",
    "model.linear = nn.Linear(3, 3, bias=False); nn.init.ones_(model.linear.weight)",
    "model.linear.register_forward_hook(lambda m, a, out: out * 2)",
    "model.linear = nn.Identity()",
    "model.weight = nn.Parameter(torch.ones(3) * 4)",
    "model.buffer = torch.ones(3, dtype=torch.float64)",
    "model.method = lambda x: x * 5",
    "globals()['SCALE'] = 3",
    "globals()['SCALE'] = 2.5",
    "globals()['helper'] = lambda x, v: x - v",
    "helper.__defaults__ = (4,)",
    "Model.method = lambda self, x: x * 6",
    "Model.extra = 8",
    "given['n'] = 3",
    "given['n'] = 0",
    "given['n'] = True",
    "given['mode'] = 'b'",
    "given['mode'] = None",
    "given['rows'] = 4",
    "given['rows'] = 1",
    "given['same'] = True",
    "given['transposed'] = True",
    "given['grad'] = True",
    "given['double'] = True",
    "given['log'] = [1, 2]",
    "given['seed'] = 5",
    "model.kinds.add(5)",
    "model.kinds = {17, 1}",
    "model.kinds = {1, 3, 17, 4}",
    "model.partial = functools.partial(helper, v=4)",
    "model.partial.keywords['v'] = 6",
    "model.partial = functools.partial(lambda x, v: x / v, v=3)",
    "globals()['LEVEL'] = 1",
    "globals()['level'] = lambda: 6",
    "globals()['Oval'] = type('Oval', (Shape,), {})",
    "Shape.__subclasses__()",
)
KERNEL = "a kernel raised"
OF_KERNELS = ("same dtype", "Subtraction, the `-` operator")
"""In errors that torch's fake kernels don't raise: a call that nothing uses is dropped with its
error, and where one comes Python objects are not changed before (docs/soundness.md)."""
EDITS = (
    "# edit main: 'x * 1.5' -> 'x * 1.25'\n",
    "# edit main: 'x - 1' -> 'x - 2'\n",
    "# edit main: 'more=2' -> 'more=3'\n",
    "# edit main: 'return x * 1.5' -> '# half as much again\\n        return x * 1.5'\n",
    "# edit main: 'SCALE = 2' -> 'SCALE = 4'\n",
    "# edit main: 'self.k = 2' -> 'self.k = 5'\n",
)
PROGRAM = """\
import einops

SCALE = 2
LEVEL = 3

class Shape:
    pass

class Round(Shape):
    pass

@torch.compiler.assume_constant_result
def level():
    return LEVEL

def helper(x, v, more=2):
    return x - 1 + v * more

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = 2
        self.flag = True
        self.items = [1, 2, 3]
        self.table = {{'a': 1, 'b': 2}}
        self.kinds = {{3, 1, 17}}
        self.partial = functools.partial(helper, v=3)
        self.count = 0
        self.linear = nn.Linear(3, 3)
        self.weight = nn.Parameter(torch.tensor([0.5, 1.5, 2.5]))
        self.register_buffer('buffer', torch.zeros(3))
        for parameter in self.linear.parameters():
            nn.init.constant_(parameter, 0.5)

    def method(self, x):
        return x * 1.5

    def forward(self, x, y, n, mode, log):
{body}
        return {result}

def inputs(given):
    rows = given.get('rows', 3)
    x, y = tensor(rows, 3, seed=given.get('seed', 0)), tensor(rows, 3, seed=1)
    if given.get('double'):
        x = x.double()
    if given.get('transposed'):
        x = tensor(3, rows).t()
    if given.get('grad'):
        y.requires_grad_()
    return x, x if given.get('same') else y

def make(cached):
    model = Model().eval()
    call = cached(model.forward, dynamic={dynamic})
    return call, model, {{}}

def run(call, model, given):
    x, y = inputs(given)
    log = list(given.get('log', []))
    try:
        out = call(x, y, given.get('n', 2), given.get('mode', 'a'), log)
    except Exception as error:
        if any(text in str(error) for text in {kernels}):
            return ['{kernel}', x.detach(), y.detach(), model.buffer.clone()]
        out = type(error).__name__
    seen = [model.count, list(model.items), dict(model.table), getattr(model, 'last', None)]
    seen += [sorted(model.kinds)]  # its order may be another (docs/soundness.md)
    return [out, x.detach(), y.detach(), log, model.buffer.clone(), *seen]

def change(call, model, given):
    {change}
"""


@st.composite
def _lines(draw, depth):
    kind = draw(st.integers(0, 5)) if depth < 2 else 0
    if kind == 4:
        body = [f"    {line}" for line in draw(_block(depth + 1))]
        return [f"for v in {draw(st.sampled_from(ITERATIONS))}:", *body, "    x = x + v"]
    if kind == 5:
        yes = [f"    {line}" for line in draw(_block(depth + 1))]
        no = [f"    {line}" for line in draw(_block(depth + 1))]
        return [f"if {draw(st.sampled_from(CONDITIONS))}:", *yes, "else:", *no]
    # Inside a loop over the same list an append would never end.
    t, s = draw(st.permutations(("x", "y")))
    u, v = draw(st.sampled_from(TENSORS)), draw(st.sampled_from(NUMBERS))
    steps = STEPS if depth == 0 else [each for each in STEPS if "self.items.append" not in each]
    return [draw(st.sampled_from(steps)).format(t=t, s=s, u=u, v=v)]


def _block(depth):
    return st.lists(_lines(depth), min_size=1, max_size=5 - 2 * depth).map(
        lambda blocks: [line for block in blocks for line in block]
    )


@st.composite
def texts(draw):
    """A row in the notation of the matrix, without its name."""
    body = "\n".join(INDENT + line for line in draw(_block(0)))
    change, edit = draw(st.sampled_from(CHANGES)), ""
    if draw(st.integers(0, 5)) == 5:
        change, edit = "pass", draw(st.sampled_from(EDITS))
    return edit + PROGRAM.format(
        body=body,
        result=draw(st.sampled_from(RESULTS)),
        change=change,
        dynamic=draw(st.sampled_from((None, None, True, False))),
        kernel=KERNEL,
        kernels=OF_KERNELS,
    )


def row(text):
    return parse("random", text)
