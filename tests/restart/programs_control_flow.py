"""Programs with functions that torch calls by the data, or in a loop: `cond`, `map`, `scan`, ..."""

from __future__ import annotations

import typing

import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as map_over
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

PROGRAMS: dict[str, typing.Callable] = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def tensor(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# ---- torch.cond

SHIFT = torch.full((4,), 0.5)


def up(x):
    return (x + SHIFT).sin() * torch.tensor(3.0)


def down(x):
    return x.cos() - 1


def either(x):
    return torch.cond(x.sum() > 0, up, down, (x,)) * 2


@program
def a_branch_for_each_sign(cached):
    call = cached(either)
    return [call(tensor(4).abs()), call(-tensor(4).abs())]


class Gated(nn.Module):
    """An early exit: the second layer runs only where the first one is not sure."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def deeper(self, x):
        return self.second(x.relu()), x.sum(-1)

    def shallow(self, x):
        return x * 1, x.mean(-1)

    def forward(self, x, limit):
        y = self.first(x)
        return torch.cond(y.amax() < limit, self.deeper, self.shallow, (y,))


@program
def a_layer_that_runs_by_the_data(cached):
    model = Gated().eval()
    call = cached(model.forward)
    return [call(tensor(2, 4), torch.tensor(limit)) for limit in (-9.0, 9.0)]


def nested(x, y):
    def outer(a, b):
        return torch.cond(a[0] > b[0], lambda p, q: p * q, lambda p, q: p - q, (a, b)) + 1

    return torch.cond(x.sum() > y.sum(), outer, lambda a, b: b / 2, (x, y))


@program
def a_branch_in_a_branch(cached):
    call = cached(nested)
    pairs = [(tensor(3), tensor(3, seed=1)), (tensor(3, seed=1), tensor(3))]
    return [call(sign * a, sign * b) for a, b in pairs for sign in (1, -1)]


def half_of(x, y):
    return torch.cond(x.sum() > 0, lambda a, b: a[: b.shape[0]] * 2, lambda a, b: b + 1, (x, y))


@program
def branches_over_sizes_that_change(cached):
    call = cached(half_of, dynamic=True)
    return [call(tensor(2 * n, seed=n), tensor(n)) for n in (2, 3, 5)]


def writes(x, y):
    def add(a, b):
        a.add_(b)
        return b * 2

    def scale(a, b):
        a.mul_(3)
        return b + 2

    out = torch.cond(y.sum() > 0, add, scale, (x, y))
    return out + x


@program
def branches_that_write_to_an_argument(cached):
    call = cached(writes)
    first, second = tensor(3), tensor(3, seed=1)
    return [call(first, tensor(3).abs()), call(second, -tensor(3).abs()), first, second]


def only_writes(x, y):
    torch.cond(y.sum() > 0, lambda a: a.add_(1) * 1, lambda a: a.mul_(2) * 1, (x,))
    return y * 2


@program
def a_branch_that_is_there_to_write(cached):
    call = cached(only_writes)
    first, second = tensor(3), tensor(3)
    return [call(first, tensor(3).abs()), call(second, -tensor(3).abs()), first, second]


def mixed(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        return torch.cond(x.sum() > 0, lambda a, b: a @ b, lambda a, b: (a @ b) * 2, (x, w))


@program
def branches_under_autocast(cached):
    call = cached(mixed)
    return [call(tensor(3, 3).abs(), tensor(3, 3)), call(-tensor(3, 3).abs(), tensor(3, 3))]


# ---- map


def row_by_row(xs, y):
    return map_over(lambda row, other: row * other + SHIFT, xs, y)


@program
def each_row(cached):
    return cached(row_by_row)(tensor(3, 4), tensor(4, seed=1))


def of_pairs(pairs):
    out = map_over(lambda pair: {"sum": pair[0] + pair[1], "flat": pair[1].reshape(-1) + 1}, pairs)
    return out["sum"], out["flat"]


@program
def each_slice_of_two_tensors_of_which_one_is_transposed(cached):
    call = cached(of_pairs)
    return [call((tensor(2, 3, 4), tensor(4, 3, 2).permute(2, 1, 0))) for _ in range(2)]


def chosen_rows(xs):
    return map_over(lambda r: torch.cond(r.sum() > 0, lambda a: a * 2, lambda a: a - 1, (r,)), xs)


@program
def a_branch_for_each_row(cached):
    call = cached(chosen_rows, dynamic=True)
    return [call(tensor(n, 4)) for n in (3, 5)]


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)

    def forward(self, xs):
        return map_over(lambda x: self.layer(x).relu(), xs)


@program
def a_layer_for_each_row(cached):
    return cached(Experts())(tensor(3, 2, 4, dtype=torch.float32))


# ---- scan, associative_scan


class Recurrent(nn.Module):
    """A state-space layer: two states, one result for each step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.into, self.keep = nn.Linear(4, 3), nn.Parameter(torch.rand(3))

    def step(self, carried, each):
        state, count = carried
        state = state * self.keep + self.into(each).tanh()
        return (state, count + 1), (state.relu(), each.reshape(-1) * 2)

    def forward(self, xs, state):
        count = torch.zeros((), dtype=torch.int64)
        return scan(self.step, (state, count), xs, reverse=True)


@program
def a_scan_with_two_states_from_the_end(cached):
    call = cached(Recurrent().forward, dynamic=True)
    return [call(tensor(n, 4), tensor(3)) for n in (3, 5)]


def along_columns(x, first):
    return scan(lambda c, r: (c + r, c * r), first, x, dim=1)


@program
def a_scan_over_a_transposed_tensor(cached):
    call = cached(along_columns)
    return [
        call(tensor(3, 2, 4).permute(0, 2, 1), tensor(3, 2)),
        call(tensor(3, 4, 2), tensor(3, 2)),
    ]


def running_sums(x):
    def combine(a, b):
        return a[0] * b[0], a[1] * b[0] + b[1]

    return associative_scan(combine, (x.sigmoid(), x), 0, combine_mode="generic")


@program
def an_associative_scan(cached):
    call = cached(running_sums)
    return [call(tensor(n, 2)) for n in (7, 4)]


# ---- while_loop


def doubled_until(x, limit):
    def goes_on(steps, y):
        return (y.sum() < limit) & (steps < 20)

    return while_loop(goes_on, lambda steps, y: (steps + 1, y * 2 + SHIFT), (torch.tensor(0), x))


@program
def a_loop_that_ends_by_the_data(cached):
    call = cached(doubled_until)
    return [call(tensor(4).abs(), torch.tensor(limit)) for limit in (-1.0, 50.0)]


def counted(x):
    return while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y.sin() + n), (0, x))


@program
def a_loop_that_counts_with_a_number(cached):
    return cached(counted)(tensor(4))


# ---- flex_attention

SLOPES = torch.tensor([0.5, 0.25])
POSITIONS = torch.randn(31, generator=torch.Generator().manual_seed(7))


def alibi(score, b, h, i, j):
    return score + SLOPES[h] * (j - i) + POSITIONS[i - j + 15]


def causal(b, h, i, j):
    return i >= j


MASK = create_block_mask(causal, None, None, 16, 16, device="cpu")


def scored(q, k):
    return flex_attention(q, k, k * 2, score_mod=alibi, block_mask=MASK)


@program
def attention_with_scores_and_a_mask(cached):
    call = cached(scored)
    pairs = [(tensor(1, 2, 16, 8), tensor(1, 2, 16, 8, seed=1))]
    pairs += [(q.bfloat16(), k.bfloat16()) for q, k in pairs]
    return [call(q, k) for q, k in pairs]


class Window(nn.Module):
    """Attention over a window, with documents that are packed into one row."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.window = 5
        self.into = nn.Linear(8, 3 * 8)

    def forward(self, x, documents):
        def seen(b, h, i, j):
            near = (i >= j) & (i - j < self.window)
            return near & (documents[b, i] == documents[b, j])

        n = x.shape[1]
        mask = create_block_mask(seen, x.shape[0], None, n, n, device=x.device)
        q, k, v = self.into(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return flex_attention(q, k, v, block_mask=mask, scale=0.5)


@program
def attention_over_documents_with_a_mask_made_inside(cached):
    model = Window().eval()
    call = cached(model.forward)
    documents = torch.tensor([[0] * 6 + [1] * 10, [0] * 3 + [1] * 13])
    return [call(tensor(2, 16, 8), documents), call(tensor(2, 16, 8), documents.flip(0))]


def grouped(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        wanted = AuxRequest(lse=True)
        return flex_attention(q, k, v, score_mod=alibi, enable_gqa=True, return_aux=wanted)


@program
def grouped_attention_under_autocast_with_its_sums(cached):
    return cached(grouped)(tensor(1, 2, 16, 8), tensor(1, 1, 16, 8), tensor(1, 1, 16, 8, seed=1))


def over_any_length(q, k):
    return flex_attention(q, k, k, score_mod=lambda score, b, h, i, j: score - (i - j).abs())


@program
def attention_over_lengths_that_change(cached):
    call = cached(over_any_length, dynamic=True)
    return [call(tensor(1, 2, n, 8), tensor(1, 2, n, 8, seed=1)) for n in (6, 9)]
