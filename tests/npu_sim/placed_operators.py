"""Operators whose kernels and fakes hand the device of their input on, name an index or look at it.

What a fake makes of an index is all that a graph shows of it.
"""

import torch

device = FIXED = torch.device("npu:0")
SIZES = {"npu:0": 4, "npu:1": 5}


def operator(name, kernel, fake):
    made = torch.library.custom_op(
        f"npugx_places::{name}",
        kernel,
        mutates_args=(),
        device_types=("cpu", "npu"),
        schema="(Tensor x, int i) -> Tensor",
    )
    made.register_fake(fake)
    return made


def handed_on(x, i):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def handed_on_first(x, i):
    return torch.empty((x.shape[0], i + 4), device=x.device, dtype=x.dtype)


def like(x, i):
    return x.new_empty(x.size(0), 4)


def on_a_literal(x, i):
    return torch.empty(4, device=torch.device("npu", 0))


def on_a_global(x, i):
    return torch.empty(4, device=device)


def on_a_number(x, i):
    assert x.device.type == "npu"
    return torch.empty(4, device=0)


def on_an_argument_by_name(x, i):
    given = {"device": 0}
    return torch.empty(4, **given)


def on_a_formatted(x, i):
    return torch.empty(4).to(f"npu:{i}")


def in_a_block(x, i):
    with torch.device("npu", 0):
        return torch.empty(4)


def sized_by_index(x, i):
    return torch.empty(4 + x.device.index, device=x.device)


def sized_by_text(x, i):
    return x.new_empty(4 + int(str(x.device)[-1]))


def sized_by_comparison(x, i):
    return x.new_empty(4 if x.device == FIXED else 5)


def sized_by_a_table(x, i):
    return x.new_empty(SIZES[str(x.device)])


def twice(x, i):
    return x * 2


def fixed(x, i):
    return torch.ones(4, device="npu:0")


def sized(x, i):
    return x.new_ones(4 + x.device.index)


PORTABLE = [operator(fake.__name__, twice, fake) for fake in (handed_on, handed_on_first, like)]
TIED = [
    *(
        operator(fake.__name__, fixed, fake)
        for fake in (
            on_a_literal,
            on_a_global,
            on_a_number,
            on_an_argument_by_name,
            on_a_formatted,
            in_a_block,
        )
    ),
    *(
        operator(fake.__name__, sized, fake)
        for fake in (sized_by_index, sized_by_text, sized_by_comparison, sized_by_a_table)
    ),
]


def calling(made):
    """A function whose graph depends on what the operator's fake says."""

    def function(x):
        y = made(x, 0)
        return x + 1, y, torch.ones(y.shape, device=y.device)

    return function
