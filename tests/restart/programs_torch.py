"""Programs about torch: modules, operators, dtypes, shapes, and the state around a call."""

from __future__ import annotations

import math
import typing

import torch
from torch import nn
from torch.nn import functional

PROGRAMS: dict[str, typing.Callable] = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def tensor(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


# ---- modules


class Full(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("kept", torch.arange(4.0))
        self.register_buffer("passing", torch.ones(4), persistent=False)
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.parts = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.LayerNorm(4)})
        self.scales = nn.ParameterList([nn.Parameter(torch.full((4,), float(i))) for i in (1, 2)])
        self.named = nn.ParameterDict({"bias": nn.Parameter(torch.ones(4))})
        self.stack = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))

    def forward(self, ids):
        x = self.embed(ids) + self.kept * self.passing
        for part in self.parts.values():
            x = part(x)
        for scale in self.scales:
            x = x * scale
        return self.head(self.stack(x) + self.named["bias"])


@program
def buffers_tied_weights_and_containers(cached):
    model = Full()
    out = cached(model.forward)(torch.tensor([1, 2, 5]))
    return [out, model.head.weight is model.embed.weight]


@program
def transformer_encoder_layer(cached):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    mask = torch.tensor([[False, False, True], [False, False, False]])
    call = cached(layer.forward)
    return [call(tensor(2, 3, 8)), call(tensor(2, 3, 8), src_key_padding_mask=mask)]


@program
def multi_head_attention_and_norms(cached):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = tensor(2, 3, 8)
    rms = nn.RMSNorm(8)
    return [cached(attention.forward)(x, x, x), cached(rms.forward)(x)]


def convolutional():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)
    )


@program
def convolution_and_batch_norm_in_eval(cached):
    model = convolutional().eval()
    return [cached(model.forward)(tensor(2, 2, 6, 6)), model[1].running_mean]


@program
def convolution_and_batch_norm_in_train(cached):
    model = convolutional().train()
    call = cached(model.forward)
    outs = [call(tensor(2, 2, 6, 6, seed=i)) for i in range(2)]
    return [outs, model[1].running_mean, model[1].running_var, model[1].num_batches_tracked]


@program
def a_recurrent_cell(cached):
    torch.manual_seed(0)
    cell = nn.LSTMCell(3, 4)
    return [cached(cell.forward)(tensor(2, 3), (tensor(2, 4), tensor(2, 4, seed=1)))]


# ---- operators


def many_operators(x, i, mask):
    y = x.clone()
    y[i] = -1.0
    y.index_put_((i,), torch.tensor(2.0), accumulate=True)
    y = y.masked_fill(mask, 0.5)
    z = torch.zeros(4, 3).scatter_(1, i.view(2, 1), 1.0)
    a, b = torch.cat([y, z]).chunk(2)
    c = torch.einsum("ij,kj->ik", a, b)
    first, *rest = torch.stack([c, c + 1]).unbind()
    values, order = c.sort(dim=-1)
    top = torch.topk(c, 2)
    return c, first, rest, values, order, top.values, torch.where(c > 0, c, -c), c.split([1, 3], 1)


@program
def indexing_scattering_joining(cached):
    mask = torch.tensor([[True, False, False]] * 4)
    return [cached(many_operators)(tensor(4, 3), torch.tensor([0, 2]), mask)]


def slices_and_writes(x):
    x[1:3, ::2] = 5
    x[..., -1] += 2
    x[0, 0] = x[1, 1]
    return (
        x[:, None],
        x[::2].contiguous(),
        x.flip(0),
        x.roll(1, 0),
        x.tril(),
        torch.outer(x[0], x[1]),
    )


@program
def slicing(cached):
    x = tensor(4, 3)
    return [cached(slices_and_writes)(x), x]


def attends(q, k, v, mask):
    sdpa = functional.scaled_dot_product_attention
    return sdpa(q, k, v), sdpa(q, k, v, is_causal=True), sdpa(q, k, v, attn_mask=mask, scale=0.5)


@program
def attention(cached):
    q, k, v = (tensor(1, 2, 4, 8, seed=i) for i in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    return [cached(attends)(q, k, v, mask)]


def writes_through_views(x):
    rows = x.unbind(0)
    rows[0].zero_()
    x.view(-1)[1:2].fill_(9)
    x.t().mul_(2)
    return x.detach(), x.data.sum()


@program
def writes_through_views_of_an_input(cached):
    x = tensor(2, 3)
    return [cached(writes_through_views)(x), x]


def makes_tensors(x):
    like = (
        torch.zeros_like(x),
        torch.full((2,), 3),
        torch.ones(2, dtype=torch.int8),
        x.new_zeros(1),
    )
    return (
        like,
        torch.arange(x.shape[0], dtype=x.dtype),
        torch.tensor([[1, 2], [3, 4]]),
        torch.eye(2),
    )


@program
def factories(cached):
    return [cached(makes_tensors)(tensor(3))]


def out_variants(x, y, out):
    torch.add(x, y, out=out)
    torch.mul(out, 2, out=out)
    return out


@program
def out_arguments(cached):
    out = torch.empty(3)
    result = cached(out_variants)(tensor(3), tensor(3, seed=1), out)
    return [result, out, result is out]


def reads_number(x):
    return x * x[0].item()


@program
def a_number_read_from_data(cached):
    call = cached(reads_number)
    return [call(tensor(3)), call(tensor(3, seed=1))]


# ---- dtypes and shapes


def arithmetic(x, y):
    return x + y, x * 2, x / 2, x // 2, x % 3, x.sum(), x.amax() if x.numel() else x, x == y


@program
def all_sorts_of_tensors(cached):
    call = cached(arithmetic)
    pairs = [
        (tensor(3, dtype=torch.bfloat16), tensor(3, dtype=torch.bfloat16, seed=1)),
        (tensor(3, dtype=torch.float16), tensor(3, seed=1)),
        (torch.tensor(2.5), torch.tensor(1.5)),
        (torch.empty(0, 3), torch.empty(0, 3)),
        (torch.tensor([5, 7]), torch.tensor([2, 3])),
        (torch.tensor([5, 7], dtype=torch.int8), torch.tensor([2.0, 3.0])),
        (torch.tensor([5, 7], dtype=torch.uint8), torch.tensor(3)),
        (tensor(4).as_strided((2, 2), (1, 2)), tensor(2, 2).t()),
        (tensor(2, 1).expand(2, 3), tensor(3)),
    ]
    return [call(*pair) for pair in pairs]


def complex_arithmetic(z):
    return (
        z * z.conj(),
        z.abs(),
        z.real + z.imag,
        torch.view_as_real(z),
        z * (1 + 2j),
        torch.polar(z.abs(), z.angle()),
    )


@program
def complex_tensors(cached):
    return [cached(complex_arithmetic)(torch.complex(tensor(3), tensor(3, seed=1)))]


def is_conjugate(z):
    return z + 1


@program
def lazily_conjugated_and_negated_inputs(cached):
    z = torch.complex(tensor(3), tensor(3, seed=1))
    call = cached(is_conjugate)
    return [call(z), call(z.conj()), call(z.conj().imag)]


def logical(x, y):
    return x & y, x | ~y, x ^ y, x.any(), x.all(), torch.logical_not(x), x.int().cumsum(0)


@program
def boolean_tensors(cached):
    return [cached(logical)(torch.tensor([True, False, True]), torch.tensor([True, True, False]))]


def sums(x):
    return x.sum(0) * x.shape[0]


def averages(x):
    return x.sum(0) / x.shape[0]


def adds_length(x):
    return x.sum(0) + x.shape[0]


@program
def a_dimension_marked_dynamic(cached):
    call = cached(sums)
    outs = []
    for n in (4, 5, 9):
        x = tensor(n, 2)
        x._dynamo_dynamic_indices = {0}
        outs.append(call(x))
    return outs


@program
def three_shapes_of_which_the_third_is_served_dynamically(cached):
    call = cached(averages)
    return [call(tensor(n, 2)) for n in (4, 5, 6)]


@program
def static_shapes_only(cached):
    call = cached(adds_length, dynamic=False)
    return [call(tensor(n, 2)) for n in (4, 5, 6)]


def sized(x, n):
    return x[:n].reshape(-1, 2).sum(1) + torch.arange(x.size(0) // 2)[: n // 2], x.new_ones(n + 1)


@program
def dynamic_sizes_and_ints(cached):
    call = cached(sized, dynamic=True)
    return [call(tensor(n + 4), n) for n in (4, 6, 8)]


def split_heads(x, heads):
    batch, length, width = x.shape
    y = x.view(batch, length, heads, width // heads).transpose(1, 2)
    return (y @ y.transpose(-1, -2)).softmax(-1).sum(), y.contiguous().view(batch, -1)


@program
def dynamic_attention_shapes(cached):
    call = cached(split_heads, dynamic=True)
    return [call(tensor(2, n, 8), 2) for n in (3, 5, 7)]


def scales(x, factor):
    return x * factor + factor


@program
def a_float_argument_that_changes(cached):
    call = cached(scales)
    return [call(tensor(3), factor) for factor in (0.5, 0.75, 1.25, -0.0, 0.0)]


def by_sign(x, factor):
    return x * (2 if math.copysign(1.0, factor) > 0 else 3)


@program
def the_sign_of_a_float_argument_that_changes(cached):
    call = cached(by_sign)
    return [call(tensor(3), factor) for factor in (0.5, 0.75, 0.0, -0.0, 0.0, 1.5, -1.5)]


@program
def an_int_argument_that_changes(cached):
    call = cached(scales)
    return [call(tensor(3), factor) for factor in (2, 3, 5, True, 1, 0)]


# ---- state around the call


@program
def inference_mode_around_the_call(cached):
    torch.manual_seed(0)
    linear = nn.Linear(3, 3)
    call = cached(linear.forward)
    with torch.inference_mode():
        out = call(tensor(2, 3))
    return [out, out.is_inference()]


@program
def inference_tensors_as_inputs(cached):
    with torch.inference_mode():
        x = tensor(2, 3)
        return [cached(scales)(x, 2)]


@program
def parameters_and_grad_mode_on(cached):
    torch.manual_seed(0)
    linear = nn.Linear(3, 3)
    with torch.enable_grad():
        out = cached(linear.forward)(tensor(2, 3))
    return [out.detach(), linear.weight.requires_grad]


def uses_default_dtype(x):
    return x + torch.ones(3), torch.full((2,), 0.5)


@program
def default_dtype_set(cached):
    call = cached(uses_default_dtype)
    torch.set_default_dtype(torch.float64)
    try:
        linear = nn.Linear(3, 3)
        nn.init.ones_(linear.weight)
        nn.init.zeros_(linear.bias)
        return [call(tensor(3)), cached(linear.forward)(tensor(2, 3, dtype=torch.float64))]
    finally:
        torch.set_default_dtype(torch.float32)


@program
def default_device_as_a_context(cached):
    call = cached(uses_default_dtype)
    with torch.device("cpu"):
        return [call(tensor(3))]


@program
def deterministic_algorithms(cached):
    call = cached(many_operators)
    mask = torch.tensor([[True, False, False]] * 4)
    torch.use_deterministic_algorithms(mode=True)
    try:
        return [call(tensor(4, 3), torch.tensor([0, 2]), mask)]
    finally:
        torch.use_deterministic_algorithms(mode=False)


@program
def a_module_moved_to_another_dtype(cached):
    model = convolutional().eval().to(torch.bfloat16)
    return [cached(model.forward)(tensor(2, 2, 6, 6, dtype=torch.bfloat16))]


def checks_modes(x):
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return x * 100
    return x * 2 if torch.get_default_dtype() is torch.float32 else x * 3


@program
def code_that_asks_for_modes(cached):
    return [cached(checks_modes)(tensor(3))]


@program
def a_decomposition_and_options(cached):
    def silu(x):
        return x * torch.sigmoid(x)

    call = cached(
        uses_silu,
        custom_decompositions={torch.ops.aten.silu.default: silu},
        options={"remove_noop_ops": False, "force_eager": True},
        backend="aot_eager",
    )
    return [call(tensor(3))]


def uses_silu(x):
    return functional.silu(x) * 2


def on_streams_of_the_cpu(x, given):
    with torch.Stream(device="cpu"):
        y = x * 2
    with given:
        return y + 1


@program
def blocks_on_streams_of_a_cpu(cached):
    return [cached(on_streams_of_the_cpu)(tensor(3), torch.Stream(device="cpu"))]
