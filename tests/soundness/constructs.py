"""Constructs of real packages that random programs draw, each with changes of what it reads.

A construct has lines of a forward, in the notation of `random_programs.STEPS`: `{t}` and `{s}` are
the two tensors, `{u}` is a tensor that is only read, `{v}` a number. What the lines need of the
module and of the model has names of its own, so that no other construct reads it: an unrelated
change of one construct is unrelated in every program.
"""

from __future__ import annotations

from typing import NamedTuple


class Construct(NamedTuple):
    """`changes` change what the lines read, `unrelated` ones must cost no compile.

    A change is statements of the function `change`, or an edit in the notation of the matrix.
    """

    lines: tuple[str, ...]
    changes: tuple[str, ...]
    unrelated: tuple[str, ...] = ()
    top: str = ""
    init: str = ""
    make: str = ""
    """Statements of `make`, where `cached` caches a function."""
    is_rare: bool = False
    """That it is slow: eager itself compiles for it, or a large package is imported."""
    is_refused: bool = False
    """That the cache refuses it, with a reason: drawn seldom, and apart from the other refusals."""


UNRELATED = (
    "model.unused = 6",
    "globals()['UNUSED'] = 6",
    "Model.unused = 8",
    "# edit main: 'return x * 1.5' -> '# half as much again\\n        return x * 1.5'\n",
)
"""Changes that are unrelated to every construct, and to every line."""

CONSTRUCTS = {
    "members of a set": Construct(
        init="self.allowed = {3, 1, 17}\nself.words = {'a', 'b', 'c'}",
        lines=(
            "{t} = {t} * (2 if n in self.allowed else 3)",
            "{t} = {t} * (2 if mode in self.words else 3)",
            "{t} = {t} + len([v for v in (2, 3, 5) if v in self.allowed])",
        ),
        changes=(
            "model.allowed.add(2)",
            "model.allowed = {2, 5}",
            "model.words.discard('a')",
            "model.words = frozenset({'b'})",
            "model.allowed.add(99)",  # a needless miss: the set is compared as a whole
            "model.words.add('z')",
        ),
    ),
    "length of a set": Construct(
        init="self.counted = {'q', 'r'}",
        lines=(
            "{t} = {t} + len(self.counted)",
            "{t} = {t} * len(set(self.counted))",
            "{t} = {t} * (2 if self.counted else 3)",
        ),
        changes=("model.counted.add('s')", "model.counted = set()"),
        unrelated=("model.counted = {'r', 'q'}",),
    ),
    "set of the keys of a dict": Construct(
        init="self.chosen = {'a': 1, 'b': 2}",
        lines=(
            "{t} = {t} + len(set(self.chosen.keys()))",
            "{t} = {t} * (2 if 'c' in set(self.chosen.keys()) else 3)",
            "missing = {{'a', 'd'}} - set(self.chosen.keys()); {t} = {t} * len(missing)",
            "names = set(self.chosen); {t} = {t} + len([w for w in ('a', 'c') if w in names])",
            "{t} = {t} * (2 if set(self.chosen.keys()) >= {{'a', 'b'}} else 3)",
        ),
        changes=(
            "model.chosen['c'] = 1",
            "model.chosen.pop('a')",
            "model.chosen = {'a': 1, 'd': 4}",
        ),
        unrelated=("model.chosen['b'] = 7",),
    ),
    "text of a set in an error": Construct(
        init="self.modes = {'a', 'b'}",
        lines=(
            "if n > 90:\n    raise ValueError(f'{{mode}} not in {{self.modes}}')\n{t} = {t} * n",
            (
                "try:\n    if n == 3:\n        raise ValueError(str(self.modes))\n"
                "    {t} = {t} + 2\nexcept ValueError:\n    {t} = {t} + 1"
            ),
        ),
        changes=("given['n'] = 91", "given['n'] = 3"),
        unrelated=("model.modes.add('z')",),
    ),
    # Torch guards all members of a set of which it asks anything.
    "text of an empty set": Construct(
        init="self.sorts = {'a', 'b'}",
        lines=("if not self.sorts:\n    raise KeyError(str(self.sorts))\n{t} = {t} * 2",),
        changes=("model.sorts.clear()",),
    ),
    "einops": Construct(
        top="import einops",
        init=(
            # No view: torch guards the sizes of what a tensor is a view of.
            "self.grid = torch.arange(9.0).reshape(3, 3).clone()\nself.pattern = 'a b -> a b'\n"
            "self.sums = 'a b, b -> a'\nself.how = 'max'\nself.times = 2"
        ),
        lines=(
            "{t} = {t} + einops.rearrange(self.grid, self.pattern)[0]",
            "{t} = einops.rearrange({t}, '... a -> ... a 1').flatten(-2) * {v}",
            "{t} = einops.reduce({t}, '... a -> ... 1', self.how) + {u}",
            "{t} = {t} + einops.repeat(self.weight, 'a -> (b a)', b=self.times).sum()",
            "{t} = {t} + einops.einsum(self.grid, self.weight, self.sums)",
            "{t} = {t} + einops.einsum({u}[..., :3].float(), self.grid, '... a, a b -> b')",
        ),
        changes=(
            "model.pattern = 'a b -> b a'",
            "model.sums = 'a b, a -> b'",
            "model.how = 'min'",
            "model.times = 3",
        ),
        unrelated=("model.grid = torch.ones(3, 3)",),
    ),
    "subclasses": Construct(
        top=(
            "class Shape:\n    pass\n\nclass Round(Shape):\n    sides = 1\n\n"
            "class Other:\n    pass\n"
        ),
        lines=(
            "{t} = {t} * len(Shape.__subclasses__())",
            "{t} = {t} + sum(getattr(each, 'sides', 4) for each in Shape.__subclasses__())",
            "{t} = {t} * {{each.__name__: 2 for each in Shape.__subclasses__()}}.get('Oval', 3)",
        ),
        changes=(
            "globals()['Oval'] = globals().get('Oval') or type('Oval', (Shape,), {})",
            "Round.sides = 5",
            "# edit main: 'sides = 1' -> 'sides = 7'\n",
        ),
        unrelated=(
            "globals()['Oval'] = globals().get('Oval') or type('Oval', (Round,), {})",
            "globals()['Another'] = globals().get('Another') or type('Another', (Other,), {})",
            "Shape.__subclasses__()",
        ),
    ),
    "function assumed to give a constant": Construct(
        top=(
            "LEVEL = 3\nPOWER = 2\n\n@torch.compiler.assume_constant_result\ndef level():\n"
            "    return LEVEL\n\n@torch.compiler.assume_constant_result\ndef power(v):\n"
            "    return v ** POWER\n"
        ),
        lines=(
            "{t} = {t} * level()",
            "{t} = {t} * power(3)",
            "{t} = {t} + ({u} if level() > 2 else 1)",
        ),
        changes=(
            "globals()['LEVEL'] = 1",
            "globals()['POWER'] = 3",
            "globals()['level'] = lambda: 6",
            "# edit main: 'return LEVEL' -> 'return LEVEL - 2'\n",
            "# edit main: 'v ** POWER' -> 'v * POWER'\n",
        ),
    ),
    "origin of a type": Construct(
        init="self.kind = list[int]",
        lines=(
            "{t} = {t} * (2 if typing.get_origin(self.kind) is list else 3)",
            "{t} = {t} + len(typing.get_args(self.kind))",
            "{t} = {t} + (2 if typing.get_origin(self.kind) in (list, dict) else 1)",
        ),
        changes=("model.kind = set", "model.kind = dict[int, str]", "model.kind = int | None"),
        unrelated=("model.kind = list[int]",),
    ),
    "table made at the first call": Construct(
        top="@functools.lru_cache\ndef angles(n):\n    return n * 0.5\n",
        init="self.cosines = None\nself.tables = {}\nself.width = 2",
        lines=(
            (
                "if self.cosines is None:\n    self.cosines = torch.arange(3.0) * self.width\n"
                "{t} = {t} + self.cosines"
            ),
            (
                "if not hasattr(self, 'sines'):\n    self.sines = torch.ones(3) * self.width\n"
                "{t} = {t} * self.sines"
            ),
            (
                "if n not in self.tables:\n    self.tables[n] = torch.ones(3) * self.width\n"
                "{t} = {t} - self.tables[n]"
            ),
            "{t} = {t} + angles(self.width)",
        ),
        changes=(
            "model.width = 3",
            "model.cosines = torch.ones(3) * 4",
            "model.sines = torch.ones(3) * 5",
            "model.tables[2] = torch.ones(3) * 6",
            "# edit main: 'n * 0.5' -> 'n - 0.5'\n",
        ),
    ),
    "hook installed at the first call": Construct(
        top=("def hooked(module, x):\n    return type(module).forward(module, x) * 3\n"),
        init=(
            "self.watched = nn.Linear(3, 3, bias=False)\nself.is_hooked = False\n"
            "nn.init.constant_(self.watched.weight, 0.25)"
        ),
        lines=(
            (
                "if not self.is_hooked:\n    self.watched.forward = functools.partial("
                "hooked, self.watched)\n"
                "    self.is_hooked = True\n{t} = {t} + self.watched(self.weight)"
            ),
        ),
        changes=(
            "model.is_hooked = True",
            "model.watched.register_forward_hook(lambda m, a, out: out * 3)",
            "# edit main: 'forward(module, x) * 3' -> 'forward(module, x) * 4'\n",
            "globals()['hooked'] = lambda module, x: x - 1",
        ),
    ),
    "layer with a call of its own": Construct(
        top="def wrapping(module, x):\n    return type(module).forward(module, x) * 2\n",
        init=(
            "self.wrapped = nn.Linear(3, 3, bias=False)\n"
            "nn.init.constant_(self.wrapped.weight, 0.125)"
        ),
        lines=(
            "{t} = {t} + self.wrapped(self.weight)",
            (
                "self.wrapped.forward = functools.partial(wrapping, self.wrapped)\n"
                "{t} = {t} - self.wrapped(self.weight)"
            ),
            (
                "self.wrapped._call_impl = functools.partial(wrapping, self.wrapped)\n"
                "{t} = {t} * self.wrapped(self.weight)"
            ),
        ),
        changes=(
            "model.wrapped._call_impl = lambda x: x - 1",
            "model.wrapped._compiled_call_impl = lambda x: x - 2",
            "model.wrapped.forward = lambda x: x - 3",
            "# edit main: 'forward(module, x) * 2' -> 'forward(module, x) * 5'\n",
        ),
    ),
    "class attribute that is set": Construct(
        top="class Counter:\n    calls, limit = 2, 5\n",
        init="self.counted = 3",
        lines=(
            "Counter.calls = self.counted\n{t} = {t} * Counter.calls\nCounter.calls = 2",
            "{t} = {t} + min(Counter.calls, Counter.limit)",
        ),
        changes=("model.counted = 4", "Counter.limit = 1"),
    ),
    "class that is bound anew": Construct(
        top=(
            "class Shape:\n    def __len__(self):\n        return 5\n\n"
            "    def moved(self, x):\n        return x - 1\n\n"
            "OTHER_SHAPE = Shape\n\n"
            "class Shape:\n    def __len__(self):\n        return 3\n\n"
            "    def moved(self, x):\n        return x + 1\n\n"
        ),
        init="self.shape = Shape()",
        lines=(
            "{t} = Shape().moved({t}) * len(Shape())",
            "{t} = self.shape.moved({t}) + len(self.shape)",
        ),
        changes=(
            "globals()['Shape'] = OTHER_SHAPE; model.shape = Shape()",
            "# edit main: 'return x + 1\\n' -> 'return x + 2\\n'\n",
        ),
        unrelated=("globals()['ALIAS'] = Shape",),
    ),
    "name that is set, and read in another way": Construct(
        top=(
            "import sys\n\nclass Tally:\n    calls = 2\n\nTALLY = Tally()\nFACTOR = 2\n\n"
            "def factor():\n    return FACTOR\n"
        ),
        init="self.tallied = 3",
        lines=(
            "type(TALLY).calls = self.tallied\n{t} = {t} * TALLY.calls\nTally.calls = 2",
            (
                "sys.modules[__name__].FACTOR = self.tallied\n{t} = {t} * factor()\n"
                "sys.modules[__name__].FACTOR = 2"
            ),
        ),
        changes=("model.tallied = 4", "model.tallied = 5"),
        is_refused=True,
    ),
    "set-up of transformers": Construct(
        top=(
            "from transformers.utils import output_capturing\n\n"
            "class Config:\n    output_hidden_states = True\n\n"
            "class Recorded(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.config = Config()\n        self.inner = nn.Linear(3, 3, bias=False)\n"
            "        nn.init.constant_(self.inner.weight, 0.5)\n"
            "        output_capturing._CAN_RECORD_REGISTRY[self] = {'hidden_states': nn.Linear}\n\n"
            "    @output_capturing.capture_outputs\n    def forward(self, x):\n"
            "        return {'last': self.inner(x)}\n"
        ),
        init="self.recorded = Recorded()",
        lines=(
            (
                "{t} = {t} + sum(each.sum() for each in "
                "self.recorded(self.weight).get('hidden_states', ()))"
            ),
        ),
        changes=(
            "model.recorded.config.output_hidden_states = False",
            "Config.output_hidden_states = False",
            "output_capturing.maybe_install_capturing_hooks(model.recorded)",
            "model.recorded.inner = nn.Identity()",
            "# edit main: 'self.inner(x)}' -> 'self.inner(x * 2)}'\n",
        ),
        is_rare=True,
    ),
    "NumPy": Construct(
        top="import numpy as np",
        init="self.d = 4",
        lines=(
            "{t} = {t} * np.pi * self.d",
            "{t} = {t} * (2 if isinstance(self.d, (int, np.integer)) else 3)",
            "{t} = {t} + torch.from_numpy({u}.detach().numpy() * self.d)",
        ),
        changes=("model.d = 9", "model.d = 2.0"),
    ),
    "numbers and functions of NumPy": Construct(
        top="import numpy as np",
        init="self.d = 4\nself.named = 'sqrt'\nself.shape = (2, 3)",
        lines=(
            "{t} = {t} / np.sqrt(self.d)",
            "{t} = {t} * float(np.sqrt(self.d))",
            "{t} = {t} * getattr(np, self.named)(self.d)",
            "{t} = {t} + int(np.prod(self.shape))",
            "{t} = {t} + torch.from_numpy(np.square({u}.detach().numpy()))",
            "{t} = {t} + torch.from_numpy(np.arange(3) * self.d)",
        ),
        changes=("model.d = 9", "model.named = 'square'", "model.shape = (2, 5)"),
        is_refused=True,
    ),
    "functional_call": Construct(
        init=(
            "self.inner = nn.Linear(3, 3)\nself.given = {'bias': torch.ones(3)}\n"
            "for parameter in self.inner.parameters():\n    nn.init.constant_(parameter, 0.25)"
        ),
        lines=(
            "{t} = {t} + torch.func.functional_call(self.inner, self.given, (self.weight,))",
            (
                "{t} = {t} + torch.func.functional_call("
                "self.inner, {{'bias': self.weight * {v}}}, ({u}.to(torch.float32)[..., :3],))"
            ),
        ),
        changes=(
            "model.given = {'weight': torch.ones(3, 3)}",
            "model.given['weight'] = torch.ones(3, 3) * 2",
            "model.inner.register_forward_hook(lambda m, a, out: out * 3)",
            "model.inner = nn.Identity()",
        ),
        unrelated=(
            "model.given['bias'] = torch.ones(3) * 4",
            "model.inner.weight.data.mul_(2)",
        ),
    ),
    "cond": Construct(
        top="def grown(a):\n    return a * 2\n",
        init="self.limit = 0.5\nself.step = 3",
        lines=(
            "{t} = torch.cond(self.weight.sum() > self.limit, grown, lambda a: a - 1, ({t},))",
            (
                "{t} = {t} + torch.cond("
                "self.weight.sum() > 0, lambda a: a * self.step, lambda a: a + 1, ({u}.sum(),))"
            ),
        ),
        changes=(
            "model.limit = 1000.0",
            "model.step = 5",
            "globals()['grown'] = lambda a: a * 4",
            "# edit main: 'return a * 2' -> 'return a * 7'\n",
        ),
        is_rare=True,
    ),
    "scan": Construct(
        top=(
            "from torch._higher_order_ops import associative_scan, scan\n\n"
            "def summed(c, r):\n    return c + r, c * r\n\ndef joined(a, b):\n    return a + b\n"
        ),
        init="self.start = 1.0\nself.reverse = False",
        lines=(
            "{t} = {t} + scan(summed, torch.ones(()) * self.start, self.weight)[1]",
            "{t} = {t} + scan(summed, torch.zeros(()), self.weight, reverse=self.reverse)[1]",
            (
                "{t} = {t} + associative_scan("
                "joined, self.weight, 0, reverse=self.reverse, combine_mode='generic')"
            ),
        ),
        changes=(
            "model.start = 3.0",
            "model.reverse = True",
            "# edit main: 'return c + r, c * r' -> 'return c + r * 2, c - r'\n",
            "# edit main: 'return a + b' -> 'return torch.maximum(a, b)'\n",
        ),
        is_rare=True,
    ),
    "map": Construct(
        top=(
            "from torch._higher_order_ops import map, while_loop\n\n"
            "def mapped(row):\n    return row * 2\n\ndef goes_on(i, a):\n    return i < 3\n"
        ),
        init="self.factor = 3",
        lines=(
            "{t} = {t} + map(mapped, self.weight)",
            "{t} = {t} + map(lambda row: row - self.factor, self.weight)",
            (
                "{t} = {t} + while_loop(goes_on, lambda i, a: (i + 1, a * self.factor), "
                "(torch.tensor(0), self.weight * 1))[1]"
            ),
        ),
        changes=(
            "model.factor = 5",
            "globals()['mapped'] = lambda row: row + 4",
            "# edit main: 'return row * 2' -> 'return row * 6'\n",
            "# edit main: 'return i < 3' -> 'return i < 2'\n",
        ),
        is_rare=True,
    ),
    "flex_attention": Construct(
        top=(
            "from torch.nn.attention.flex_attention import create_block_mask, flex_attention\n\n"
            "SLOPE = 2\n\ndef biased(score, b, h, i, j):\n    return score + i - j\n\n"
            "def seen(b, h, i, j):\n    return i >= j\n\n"
            "MASK = create_block_mask(seen, None, None, 3, 3, device='cpu')\n"
        ),
        init="self.queries = torch.arange(3.0).reshape(1, 1, 3, 1)",
        lines=(
            "q = self.queries\n{t} = {t} + flex_attention(q, q, q, score_mod=biased).reshape(3)",
            (
                "q = self.queries\n"
                "{t} = {t} + flex_attention("
                "q, q, q, score_mod=lambda score, b, h, i, j: score * SLOPE).reshape(3)"
            ),
            "q = self.queries\n{t} = {t} + flex_attention(q, q, q, block_mask=MASK).reshape(3)",
        ),
        changes=(
            "globals()['SLOPE'] = -3",
            "globals()['biased'] = lambda score, b, h, i, j: score * 3",
            (
                "globals()['MASK'] = create_block_mask("
                "lambda b, h, i, j: i <= j, None, None, 3, 3, device='cpu')"
            ),
            "# edit main: 'score + i - j' -> 'score + j - i'\n",
            "# edit main: 'return i >= j' -> 'return i <= j'\n",
        ),
        is_rare=True,
    ),
    "sizes from data": Construct(
        init="self.sparse = torch.tensor([0.0, 2.0, 3.0])\nself.part = 1",
        lines=(
            "{t} = {t} + {u}.nonzero().shape[0]",
            "{t} = {t} + {u}[{u} > {v}].sum()",
            "{t} = {t} + {t}.reshape(-1)[: ({u} > 0).sum().item()].sum()",
            "kept = {t}[{t} > 0]; {t} = {t} + kept.reshape(-1)[:1].sum() * kept.shape[0]",
            "{t} = {t} + torch.where({u} > 0)[0].squeeze(0).sum()",
            "{t} = {t} + self.sparse.nonzero().shape[0] * self.part",
            "{t} = {t} + torch.masked_select(self.sparse, self.sparse > self.part).sum()",
        ),
        changes=(
            "model.part = 2",
            "model.sparse = torch.tensor([4.0, 0.0, 5.0], dtype=torch.float64)",
        ),
        unrelated=("model.sparse = torch.tensor([4.0, 0.0, 5.0])", "model.sparse.mul_(3)"),
    ),
    "partial": Construct(
        top="def moved(x, v, more=2):\n    return x - 1 + v * more\n",
        init="self.partial = functools.partial(moved, v=3)",
        lines=(
            "{t} = self.partial({t})",
            "{t} = functools.partial(moved, more={v})({t}, 2)",
            "{t} = functools.partial(self.partial, more=4)({t})",
        ),
        changes=(
            "model.partial = functools.partial(moved, v=4)",
            "model.partial.keywords['v'] = 6",
            "model.partial = functools.partial(lambda x, v, more=1: x / v, v=3)",
            "moved.__defaults__ = (5,)",
            "# edit main: 'x - 1 + v' -> 'x - 2 + v'\n",
        ),
        unrelated=("model.partial = functools.partial(moved, v=3)",),
    ),
    "wrapper": Construct(
        top=(
            "def scaled(by):\n    def decorate(function):\n"
            "        @functools.wraps(function)\n        def wrapper(*args, **named):\n"
            "            return function(*args, **named) * by\n"
            "        return wrapper\n    return decorate\n\n"
            "@scaled(2)\n@scaled(0.5)\ndef wrapped(x, more=0):\n    return x + 1 + more\n\n"
            "class Called:\n    def __init__(self, function, extra):\n"
            "        self.function, self.extra = function, extra\n\n"
            "    def __call__(self, x):\n        return self.function(x) + self.extra\n"
        ),
        init="self.called = Called(wrapped, 2)",
        lines=(
            "{t} = wrapped({t})",
            "{t} = wrapped({t}, more={v})",
            "{t} = self.called({t})",
            "{t} = scaled({v})(torch.relu)({t})",
        ),
        changes=(
            "globals()['wrapped'] = scaled(3)(lambda x, more=0: x - more)",
            "model.called.extra = 7",
            "model.called.function = torch.relu",
            "Called.__call__ = lambda self, x: x * 5",
            "# edit main: '@scaled(0.5)' -> '@scaled(0.25)'\n",
            "# edit main: 'x + 1 + more' -> 'x + 5 + more'\n",
        ),
        unrelated=("model.called.unused = 7", "Called.unused = 7"),
    ),
    "nested containers": Construct(
        init=("self.nested = {'a': [1, {'b': (2, 3)}], 'c': {'d': torch.ones(3)}, 'unread': [5]}"),
        lines=(
            "{t} = {t} * self.nested['a'][1]['b'][0]",
            "{t} = {t} + self.nested['c']['d']",
            "for each in self.nested['a'][1]['b']:\n    {t} = {t} + each",
            (
                "for key, values in self.nested['a'][1].items():\n"
                "    {t} = {t} * len(key) + sum(values)"
            ),
            "self.nested['a'][1]['b'] += (4,)",
            "held = {{'p': [{t}, ({u}, n)]}}; {t} = held['p'][0] + held['p'][1][0]",
            "log.append({{'t': ({t} + 1, [n])}})",
        ),
        changes=(
            "model.nested['a'][1]['b'] = (4, 3)",
            "model.nested['a'][1]['b'] += (5,)",
            "model.nested['a'][1]['z'] = (6,)",
            "model.nested['c']['d'] = torch.ones(3, dtype=torch.float64)",
            "model.nested['c'] = {'d': 7}",
        ),
        unrelated=(
            "model.nested['unread'].append(8)",
            "model.nested['c']['d'] = torch.ones(3) * 4",
        ),
    ),
    "walk of a set": Construct(
        init="self.ordered = {3, 1, 17}",
        lines=(
            "for w in self.ordered:\n    {t} = {t} * 1.5 + w",
            "{t} = {t} + list(self.ordered)[0]",
            "{t} = {t} * len(str(self.ordered))",
            "{t} = {t} * {{'{{1, 17, 3}}': 2}}.get(str(self.ordered), 3)",
            "{t} = {t} + [w * 2 for w in self.ordered if w > 1][-1]",
        ),
        changes=(
            "model.ordered.add(5)",
            "model.ordered = {17, 1}",
            "model.ordered = {17, 3, 1}",
            "model.ordered = {1, 3, 17, 4}",
        ),
        unrelated=("model.ordered = {3, 1, 17}",),
    ),
    "identity of objects": Construct(
        top=(
            "class Token:\n    def __init__(self, v):\n        self.v = v\n\n"
            "class Equal(Token):\n"
            "    def __eq__(self, other):\n        return self.v == other.v\n\n"
            "    def __hash__(self):\n        return 1\n\n"
            "TOKEN, EQUAL = Token(1), Equal(1)\nTOKENS = [TOKEN, EQUAL, Token(2)]\n\n"
            "def doubling():\n    def doubled(a):\n        return a * 2\n    return doubled\n\n"
            "DOUBLE, AGAIN = doubling(), doubling()\n"
        ),
        init=(
            "self.token, self.equal, self.function = TOKEN, EQUAL, DOUBLE\n"
            "self.tokens = [TOKEN, Token(3)]\nself.by_token = {TOKEN: 4, EQUAL: 5}"
        ),
        lines=(
            "{t} = {t} * (2 if self.token is TOKEN else 3)",
            "{t} = {t} * (2 if self.token == TOKEN else 3)",
            "{t} = {t} * (2 if self.equal == EQUAL else 3)",
            "{t} = {t} * (2 if self.equal is EQUAL else 3)",
            "{t} = {t} * (2 if self.token in TOKENS else 3)",
            "{t} = {t} * (2 if self.equal in TOKENS else 3)",
            "{t} = {t} + (TOKENS.index(self.token) if self.token in TOKENS else 7)",
            "{t} = {t} * {{TOKEN: 2}}.get(self.token, 3)",
            "{t} = {t} * {{EQUAL: 2, TOKEN: 4}}.get(self.equal, 3)",
            "{t} = {t} * self.by_token.get(self.token, 3)",
            "{t} = {t} * self.by_token.get(EQUAL, 3)",
            "{t} = {t} + len({{self.token, self.tokens[0], TOKEN}})",
            "{t} = {t} + len({{self.equal, EQUAL}})",
            "{t} = {t} * (2 if self.tokens[0] is self.token else 3)",
            "{t} = {t} * (2 if self.token is not self.tokens[1] else 3)",
            "{t} = {t} * (2 if self.function is DOUBLE else 3)",
            "{t} = {t} * {{DOUBLE: 2, AGAIN: 3}}.get(self.function, 4)",
            "{t} = self.function({t}) + (1 if self.function in (AGAIN,) else 0)",
        ),
        changes=(
            "model.token = Token(1)",
            "model.token = TOKENS[2]",
            "model.token = TOKENS[1]",
            "globals()['TOKEN'] = Token(1)",
            "globals()['EQUAL'] = Equal(1)",
            "model.equal = Equal(1)",
            "model.equal = Equal(2)",
            "EQUAL.v = 2",
            "TOKENS[0] = Token(1)",
            "TOKENS[0] = TOKENS[1]",
            "model.tokens[0] = Token(1)",
            "model.tokens[1] = model.token",
            "model.tokens.reverse()",
            "model.by_token = {Token(1): 4, Equal(1): 5}",
            "model.by_token = {EQUAL: 4, TOKEN: 5}",
            "model.function = AGAIN",
            "model.function = doubling()",
            "globals()['DOUBLE'] = AGAIN",
            "# edit main: 'self.v == other.v' -> 'self.v < other.v'\n",
            "# edit main: 'doubled(a):' -> 'doubled(a):\\n        a = a + 3'\n",
        ),
    ),
    "aliases": Construct(
        top="class Owner:\n    def __init__(self, v):\n        self.v = v\n",
        init=(
            "self.left = [1, 2]\nself.right = self.left\n"
            "self.owner = Owner(2)\nself.same_owner = self.owner\n"
            "self.one = torch.ones(3)\nself.two = self.one\nself.third = torch.ones(3)"
        ),
        lines=(
            "self.left.append(4)\n{t} = {t} + len(self.right)",
            "self.right[0] = {v}\n{t} = {t} * self.left[0]",
            "self.owner.v = {v}\n{t} = {t} + self.same_owner.v",
            "self.same_owner.more = 3\n{t} = {t} * getattr(self.owner, 'more', 2)",
            "self.one.add_(1)\n{t} = {t} + self.two",
            "self.two.mul_(3)\n{t} = {t} * self.one - self.third",
            "{t} = {t} * (2 if self.one is self.two else 3)",
            "{t} = {t} * (2 if self.left is self.right else 3)",
            "self.third[0] = 7\n{t} = {t} + self.one + self.two",
            "self.left, self.right = self.right, self.left\n{t} = {t} + len(self.left)",
        ),
        changes=(
            "model.right = [1, 2]",
            "model.right = [1, 2, 3]",
            "model.left = model.right = [5, 2]",
            "model.same_owner = Owner(2)",
            "model.owner = Owner(2)",
            "model.two = torch.ones(3)",
            "model.two = model.one.view(3)",
            "model.one = model.two[:]",
            "model.third = model.one",
            "model.third = model.two.reshape(3)",
            "model.one = model.two = model.third",
            "model.two = model.buffer",
        ),
    ),
    "closure": Construct(
        top=(
            "def made_of(by, table):\n    def inner(a):\n"
            "        return a * by + sum(table.values())\n    return inner\n\n"
            "def counting(start):\n    def count(a):\n        nonlocal start\n"
            "        start += 1\n        return a + start\n    return count\n"
        ),
        init="self.closed = made_of(2, {'a': 1})\nself.counted_by = counting(1)",
        lines=(
            "{t} = self.closed({t})",
            "{t} = {t} + self.closed(self.weight)",
            "{t} = made_of({v}, self.table)({t})",
            "{t} = functools.reduce(lambda a, f: f(a), [self.closed, self.closed], {t})",
            "{t} = self.counted_by({t})",
        ),
        changes=(
            "model.closed.__closure__[0].cell_contents = 5",
            "model.closed.__closure__[1].cell_contents['z'] = 2",
            "model.closed.__closure__[1].cell_contents = {'q': 8}",
            "model.closed = made_of(4, {'a': 1})",
            "model.closed = lambda a: a - 9",
            "model.counted_by = counting(4)",
            "# edit main: 'a * by + sum' -> 'a * by - sum'\n",
            "# edit main: 'start += 1' -> 'start += 2'\n",
        ),
        unrelated=("model.closed = made_of(2, {'a': 1})",),
    ),
    "cached functions inside": Construct(
        top=(
            "INNER = 1\n\ndef innermost(a, by=2):\n    return a * by + INNER\n\n"
            "class Inside:\n    def __init__(self, cached):\n"
            "        self.innermost, self.by = cached(innermost), 2\n\n"
            "    def through(self, a):\n        return self.innermost(a) * self.by\n\n"
            "class Block(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.by = 4.0\n\n    def forward(self, a):\n        return a / self.by\n"
        ),
        make=(
            "model.inside = Inside(cached)\nmodel.through = cached(model.inside.through)\n"
            "model.block = cached(Block().eval())"
        ),
        lines=(
            "{t} = self.through({t})",
            "{t} = {t} + self.inside.innermost(self.weight)",
            "{t} = self.inside.innermost(self.through({t}), by={v})",
            "{t} = self.block({t})",
            "{t} = (lambda a: self.through(self.block(a)))({t})",
        ),
        changes=(
            "model.inside.by = 3",
            "globals()['INNER'] = 4",
            "innermost.__defaults__ = (5,)",
            "model.through = torch.relu",
            "model.through = innermost",
            "model.inside.innermost = torch.sin",
            "model.block.by = 5.0",
            "model.block = nn.Identity()",
            "# edit main: 'a * by + INNER' -> 'a * by - INNER'\n",
            "# edit main: 'innermost(a) * self.by' -> 'innermost(a) + self.by'\n",
            "# edit main: 'a / self.by' -> 'a - self.by'\n",
        ),
        unrelated=("model.inside.unused = 7", "model.block.unused = 7"),
    ),
    "vmap": Construct(
        top="def rowed(a):\n    return a * 2 + 1\n",
        init="self.row_factor = 3",
        lines=(
            "{t} = {t} + torch.func.vmap(rowed)(self.weight)",
            "{t} = {t} + torch.vmap(lambda row: row * self.row_factor)(self.weight)",
            "{t} = {t} + torch.func.grad(lambda w: (rowed(w) * w).sum())(self.weight)",
            (
                "slope = torch.func.grad(lambda w: w * w * self.row_factor)\n"
                "{t} = {t} + torch.func.vmap(slope)(self.weight)"
            ),
        ),
        changes=(
            "model.row_factor = 5",
            "globals()['rowed'] = lambda a: a - 4",
            "# edit main: 'a * 2 + 1' -> 'a * 3 + 1'\n",
        ),
    ),
    "traced module": Construct(
        top=(
            "def traced(scale):\n    layer = nn.Linear(3, 3).eval()\n"
            "    for parameter in layer.parameters():\n"
            "        nn.init.constant_(parameter, 0.125 * scale)\n"
            "    return torch.jit.trace(layer, torch.ones(3))\n"
        ),
        init="self.traced = traced(1)",
        lines=("{t} = {t} + self.traced(self.weight)",),
        changes=(
            "model.traced = torch.jit.trace(nn.ReLU(), torch.ones(3))",
            "model.traced = nn.Identity()",
            "model.traced.weight.data.mul_(2)",
            "model.traced = traced(3)",
        ),
        is_refused=True,
    ),
    "allow_in_graph": Construct(
        top="@torch.compiler.allow_in_graph\ndef allowed(a):\n    return a * 2\n",
        lines=("{t} = allowed({t})", "{t} = {t} + allowed(self.weight)"),
        changes=(
            "globals()['allowed'] = lambda a: a - 1",
            "# edit main: 'return a * 2' -> 'return a * 7'\n",
        ),
        is_refused=True,
    ),
}

MORE = "x = x + more"
"""The last line of a forward that is called through a partial."""


class Target(NamedTuple):
    """What is given to `cache_compile`, as the lines of `make` that set `target` and `given`."""

    lines: str
    changes: tuple[str, ...] = ()


TARGETS = {
    "bound method": Target("target, given = model.forward, {}"),
    "module": Target("target, given = model, {}"),
    "partial as target": Target(
        "target = functools.partial(model.forward, more=2)\ngiven = {'partial': target}",
        ("given['partial'].keywords['more'] = 3", "given['partial'].keywords['more'] = 2.0"),
    ),
    "partial as forward": Target(
        "model.forward = functools.partial(model.forward, more=2)\n"
        "target, given = model, {'partial': model.forward}",
        ("given['partial'].keywords['more'] = 3",),
    ),
}


class Place(NamedTuple):
    """Where the lines of a construct stand: each text has the word LINES in the place of them.

    `{part}` and `{Part}` are names for what the place makes. A place that is a function of its own
    ends with a line that its edits change.
    """

    body: str
    changes: tuple[str, ...] = ()
    top: str = ""
    init: str = ""
    methods: str = ""
    make: str = ""


_FUNCTION = "def {part}(self, x, y, n, mode, log):\n    LINES\n    x = x + 1.25\n    return x, y\n"
_EDIT = "# edit main: 'x + 1.25' -> 'x - 1.25'\n"
_MODULE = (
    "class {Part}(nn.Module):\n    by = 2\n\n    def forward(part, self, x, y, n, mode, log):\n"
    "        LINES\n        x = x + 1.25\n        return x * part.by, y\n"
)
_METHOD = "x, y = self.{part}(x, y, n, mode, log)"
_CALL = "x, y = self.{part}(self, x, y, n, mode, log)"

PLACES = {
    "in the forward": Place("LINES"),
    "in a branch": Place(
        "if self.flag and n:\n    LINES\nelse:\n    x = x - 1", ("model.flag = 0", "given['n'] = 0")
    ),
    "in a loop": Place("for turn in range(n):\n    LINES", ("given['n'] = 3", "given['n'] = 1")),
    "in a try": Place("try:\n    LINES\nfinally:\n    x = x * 2"),
    "in a context": Place("with torch.no_grad():\n    LINES"),
    "in a function": Place(
        "x, y = {part}(self, x, y, n, mode, log)",
        (_EDIT, "globals()['{part}'] = lambda self, x, y, n, mode, log: (y, x)"),
        top=_FUNCTION,
    ),
    "in a function in the forward": Place(
        "def {part}(x, y, by=n):\n    LINES\n    return x * by, y\nx, y = {part}(x, y)",
        ("# edit main: 'x * by, y' -> 'x - by, y'\n", "given['n'] = 5"),
    ),
    "in a closure": Place(
        _CALL,
        (
            "# edit main: 'x + cell' -> 'x - cell'\n",
            "model.{part}.__closure__[0].cell_contents = 5",
            "model.{part} = make_{part}(7)",
        ),
        top="def make_{part}(cell):\n    def part(self, x, y, n, mode, log):\n        LINES\n"
        "        return x + cell, y\n    return part\n",
        init="self.{part} = make_{part}(2)",
    ),
    "in a method": Place(
        _METHOD,
        (_EDIT, "Model.{part} = lambda self, x, y, n, mode, log: (y, x)"),
        methods=_FUNCTION,
    ),
    "in a property": Place(
        "x, y = self.{part}(x, y, n, mode, log)",
        (_EDIT, "Model.{part} = property(lambda self: lambda x, y, n, mode, log: (y, x))"),
        methods="@property\ndef {part}(self):\n    def part(x, y, n, mode, log):\n        LINES\n"
        "        x = x + 1.25\n        return x, y\n    return part\n",
    ),
    "in a partial": Place(
        _CALL,
        (
            _EDIT,
            "model.{part} = functools.partial({part}, by=3)",
            "model.{part}.keywords['by'] = 5",
        ),
        top="def {part}(self, x, y, n, mode, log, by=1):\n    LINES\n    x = x + 1.25\n"
        "    return x * by, y\n",
        init="self.{part} = functools.partial({part}, by=2)",
    ),
    "in a module": Place(
        _CALL,
        (
            _EDIT,
            "model.{part}.by = 3",
            "{Part}.forward = lambda part, self, x, y, n, mode, log: (y, x)",
            "model.{part}.register_forward_hook(lambda part, given, out: (out[1], out[0]))",
        ),
        top=_MODULE,
        init="self.{part} = {Part}()",
    ),
    "in modules of a list": Place(
        "for each in self.{part}:\n    x, y = each(self, x, y, n, mode, log)",
        (
            _EDIT,
            "model.{part}[1].by = 3",
            "model.{part}.append({Part}())",
            "model.{part}[0] = model.{part}[1]",
        ),
        top=_MODULE,
        init="self.{part} = nn.ModuleList([{Part}(), {Part}()])",
    ),
    "in a cached function": Place(
        _CALL,
        (_EDIT, "model.{part} = lambda self, x, y, n, mode, log: (y, x)"),
        top=_FUNCTION,
        make="model.{part} = cached({part})",
    ),
}
