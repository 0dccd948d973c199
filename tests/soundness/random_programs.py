"""Random small programs and a random change, as rows of the matrix.

A program is a module whose forward goes through operators, control flow over Python values,
containers, aliases and writes, and through constructs of real packages (`constructs.py`), nested
in functions, modules, loops and branches (`PLACES`); its run returns all that a caller could see
afterwards.
"""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from constructs import CONSTRUCTS, MORE, PLACES, TARGETS, UNRELATED
from hypothesis import assume
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
CHANGES_OF_THE_SET = ("self.kinds.add(40)", "self.kinds |= {{2, 33}}")
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
    *CHANGES_OF_THE_SET,
    "{t} = {t} + len(self.kinds)",
    "unread = f'{{self.kinds}}'",
)
RESULTS = (
    "x",
    "(x, y)",
    "[y, x, self.count]",
    "{'x': x, 'n': n}",
    "x, log",
    "self.buffer + x.sum()",
)
NOTHING = "pass"
CHANGES = (
    NOTHING,
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
)
KERNEL = "a kernel raised"
OF_KERNELS = ("same dtype", "Subtraction, the `-` operator")
"""In errors that torch's fake kernels don't raise: a call that nothing uses is dropped with its
error, and where one comes Python objects are not changed before (docs/soundness.md)."""
EDITS = (
    "# edit main: 'x * 1.5' -> 'x * 1.25'\n",
    "# edit main: 'x - 1' -> 'x - 2'\n",
    "# edit main: 'more=2' -> 'more=3'\n",
    "# edit main: 'SCALE = 2' -> 'SCALE = 4'\n",
    "# edit main: 'self.k = 2' -> 'self.k = 5'\n",
)
PROGRAM = """\
{top}
SCALE = 2

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
        self.count = 0
        self.linear = nn.Linear(3, 3)
        self.weight = nn.Parameter(torch.tensor([0.5, 1.5, 2.5]))
        self.register_buffer('buffer', torch.zeros(3))
        for parameter in self.linear.parameters():
            nn.init.constant_(parameter, 0.5)
{init}

    def method(self, x):
        return x * 1.5

{methods}
    def forward(self, x, y, n, mode, log, more=1):
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
{make}
    return cached(target, dynamic={dynamic}), model, given

def run(call, model, given):
    x, y = inputs(given)
    log, outs = list(given.get('log', [])), []
    for _ in range({calls}):
        # A set that a call has changed may have another order (docs/soundness.md).
        model.kinds = set(sorted(model.kinds))
        try:
            outs.append(call(x, y, given.get('n', 2), given.get('mode', 'a'), log))
        except Exception as error:
            if any(text in str(error) for text in {kernels}):
                return ['{kernel}', x.detach(), y.detach(), model.buffer.clone()]
            outs.append(type(error).__name__)
            break
    state = {{name: value for name, value in vars(model).items() if name[0] != '_'}}
    state.pop('forward', None)
    return [outs, x.detach(), y.detach(), log, model.buffer.clone(), *seen(state, [])]

def seen(value, known):
    '''What a caller could see in a value: what objects hold, and which of them are one.'''
    if value is None or isinstance(value, (bool, int, float, str)):
        return [value]
    if isinstance(value, (set, frozenset)):  # its order may be another (docs/soundness.md)
        return [type(value).__name__, sorted(value)]
    if isinstance(value, tuple):
        return ['tuple', *(out for each in value for out in seen(each, known))]
    own = type(value).__module__ == __name__ and not isinstance(value, (type, nn.Module))
    if not own and not isinstance(value, (torch.Tensor, dict, list)):
        return [type(value).__name__ if isinstance(value, nn.Module) else 'an object']
    if any(value is each for each in known):
        return [[value is each for each in known].index(True)]
    known.append(value)
    if isinstance(value, torch.Tensor):
        return [value.detach().clone()]
    if isinstance(value, dict):
        return [out for item in value.items() for each in item for out in seen(each, known)]
    if isinstance(value, list):
        return ['list', *(out for each in value for out in seen(each, known))]
    return [type(value).__name__, *seen(vars(value), known)]

def raised(seen):
    return seen[0] == '{kernel}' or isinstance(seen[0][-1], str)

def change(call, model, given):
    {change}
"""
IS_EDIT = "# edit "


class Drawn(NamedTuple):
    """A program, what was drawn for it, and whether its change must cost no compile."""

    text: str
    constructs: tuple[str, ...]
    places: tuple[str, ...]
    target: str
    change: str
    is_unrelated: bool
    is_related: bool
    """That the change is one of a construct of the program, or of the place of one."""


class Part(NamedTuple):
    """The lines of one construct, and where in the program they stand."""

    construct: str
    lines: list[str]
    place: str = "in the forward"


def text_of(parts, around=((), ()), *, target="bound method", change=NOTHING, **settings):
    """The program with these parts in its forward, as a row of the matrix without its name.

    The lines of `around` stand before and after the parts.
    """
    constructs = [CONSTRUCTS[name] for name in dict.fromkeys(part.construct for part in parts)]
    top = [each.top.strip() for each in constructs]
    init, methods = [each.init for each in constructs], []
    make = [each.make for each in constructs]
    body = list(around[0])
    for index, part in enumerate(parts):
        place = PLACES[part.place]
        names = {"part": f"part{index}", "Part": f"Part{index}"}
        for texts, text in ((top, place.top), (methods, place.methods)):
            texts.append(_with(text, part.lines, names))
        init.append(place.init.format(**names))
        make.append(place.make.format(**names))
        body += _with(place.body, part.lines, names).split("\n")
    body += [*around[1], MORE]
    is_edit = change.startswith(IS_EDIT)
    settings = {"result": "(x, y)", "dynamic": None, "calls": 1} | settings
    program = PROGRAM.format(
        top="\n\n".join(filter(None, top)),
        init=textwrap.indent("\n".join(filter(None, init)), INDENT),
        methods=textwrap.indent("\n".join(filter(None, methods)), " " * 4),
        body=textwrap.indent("\n".join(body), INDENT),
        make=textwrap.indent("\n".join([*filter(None, make), TARGETS[target].lines]), " " * 4),
        change=NOTHING if is_edit else change,
        kernel=KERNEL,
        kernels=OF_KERNELS,
        **settings,
    )
    return change + program if is_edit else program


def _with(text, lines, names):
    """The text of a place with the lines at the depth of the word LINES in it."""
    filled = []
    for line in text.format(**names).split("\n"):
        depth = line[: len(line) - len(line.lstrip())]
        filled += [depth + each for each in lines] if line.strip() == "LINES" else [line]
    return "\n".join(filled)


@st.composite
def _lines(draw, depth, chosen):
    kind = draw(st.integers(0, 6)) if depth < 2 else 0
    if kind == 4:
        body = [f"    {line}" for line in draw(_block(depth + 1, chosen))]
        return [f"for v in {draw(st.sampled_from(ITERATIONS))}:", *body, "    x = x + v"]
    if kind == 5:
        yes = [f"    {line}" for line in draw(_block(depth + 1, chosen))]
        no = [f"    {line}" for line in draw(_block(depth + 1, chosen))]
        return [f"if {draw(st.sampled_from(CONDITIONS))}:", *yes, "else:", *no]
    if kind == 6:
        return draw(_filled(CONSTRUCTS[draw(st.sampled_from(chosen))].lines))
    # Inside a loop over the same list an append would never end.
    steps = STEPS if depth == 0 else [each for each in STEPS if "self.items.append" not in each]
    return draw(_filled(steps))


@st.composite
def _filled(draw, steps):
    """The lines of one of the steps, about some tensors and a number."""
    t, s = draw(st.permutations(("x", "y")))
    u, v = draw(st.sampled_from(TENSORS)), draw(st.sampled_from(NUMBERS))
    return draw(st.sampled_from(steps)).format(t=t, s=s, u=u, v=v).split("\n")


def _block(depth, chosen):
    least = 0 if depth == 0 else 1
    return st.lists(_lines(depth, chosen), min_size=least, max_size=3 - depth).map(
        lambda blocks: [line for block in blocks for line in block]
    )


COMMON = [name for name, each in CONSTRUCTS.items() if not (each.is_rare or each.is_refused)]
RARE = [name for name, each in CONSTRUCTS.items() if each.is_rare]
REFUSED = [name for name, each in CONSTRUCTS.items() if each.is_refused]


@st.composite
def programs(draw):
    """A `Drawn`: most changes are of what a construct of the program reads."""
    chosen = draw(st.lists(st.sampled_from(COMMON), min_size=1, max_size=3, unique=True))
    seldom = draw(st.integers(0, 30))
    if seldom > 28:
        chosen = [draw(st.sampled_from(RARE)), chosen[0]]
    elif seldom == 28:
        chosen = [draw(st.sampled_from(REFUSED))]
    # Each construct stands at least once where it is reached.
    parts = [
        Part(name, draw(_filled(CONSTRUCTS[name].lines)), draw(st.sampled_from(list(PLACES))))
        for name in [*chosen, *draw(st.lists(st.sampled_from(chosen), max_size=1))]
    ]
    around = draw(_block(0, chosen)), draw(_block(0, chosen))
    target = draw(st.sampled_from(("bound method", *TARGETS)))
    of_chosen = [CONSTRUCTS[name] for name in chosen]
    related = [change for each in of_chosen for change in each.changes]
    of_places = list(TARGETS[target].changes)
    for index, part in enumerate(parts):
        names = {"part": f"part{index}", "Part": f"Part{index}"}
        of_places += [change.format(**names) for change in PLACES[part.place].changes]
    unrelated = [*UNRELATED, *(change for each in of_chosen for change in each.unrelated)]
    kinds = (related, related, related, of_places or related, unrelated, CHANGES, EDITS)
    change = draw(st.sampled_from(draw(st.sampled_from(kinds))))
    text = text_of(
        parts,
        around,
        target=target,
        change=change,
        result=draw(st.sampled_from(RESULTS)),
        dynamic=draw(st.sampled_from((None, None, True, False))),
        calls=draw(st.sampled_from((1, 1, 2))),
    )
    assume(not walks_a_set_that_it_changes(text))
    return Drawn(
        text,
        tuple(chosen),
        tuple(part.place for part in parts),
        target,
        change,
        change in unrelated or change == NOTHING,
        change in related or change in of_places,
    )


def walks_a_set_that_it_changes(text):
    """A second call may walk the set in another order than eager's: see docs/soundness.md.

    Dynamo makes the change after the graph, and fills the set again in its own way.
    """
    return "in self.kinds:" in text and any(
        change.format() in text for change in CHANGES_OF_THE_SET
    )


def row(text):
    return parse("random", text)
