"""`guards="inputs_unsafe"`: arguments are re-checked at every call, and nothing else."""

import subprocess
import sys
import textwrap

import pytest
import torch

from npugx_cache import cache_compile

pytestmark = pytest.mark.thorough

SCALE = 2.0


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(4, 4)
        self.gain = 1.5

    def forward(self, x, y=None, flag=True):
        x = self.inner(x) * self.gain * SCALE
        return x if y is None else (x + y if flag else x - y)


@pytest.fixture
def net(tmp_path):
    net = cache_compile(
        Net().eval(), cache_dir=tmp_path, guards="inputs_unsafe", strict=True, dynamic=False
    )
    for _ in range(4):  # the 2nd acceptance builds managers
        net(torch.ones(2, 4))
    assert net.forward.cache_info()[:2] == (0, 1)
    return net


CALLS = {
    "another shape": (torch.ones(3, 4),),
    "another dtype": (torch.ones(2, 4, dtype=torch.float64),),
    "an argument more": (torch.ones(2, 4), torch.ones(2, 4)),
    "another flag": (torch.ones(2, 4), torch.ones(2, 4), False),
    "a tensor with other strides": (torch.ones(4, 2).t(),),
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_are_checked(net, name):
    net.double() if "dtype" in name else net
    for _ in range(3):
        assert torch.equal(net(*CALLS[name]), Net.forward(net, *CALLS[name]))
    assert net.forward.cache_info().misses == 2


def test_one_tensor_twice_is_told_from_two(net):
    x = torch.ones(2, 4)
    net(x, torch.zeros(2, 4))
    assert torch.equal(net(x, x), Net.forward(net, x, x))
    assert net.forward.cache_info().misses == 3


def test_torch_state_is_checked(net):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert net(torch.ones(2, 4)).dtype == Net.forward(net, torch.ones(2, 4)).dtype
    assert net.forward.cache_info().misses == 2


def test_what_its_name_says_the_module_is_not_checked(net):
    before = net(torch.ones(2, 4))
    net.gain = 3.0
    assert torch.equal(net(torch.ones(2, 4)), before)  # wrong, and asked for
    assert net.forward.cache_info().misses == 1


def test_weights_are_read_at_every_call(net):
    with torch.no_grad():
        net.inner.weight.mul_(2)
    net.inner.bias = torch.nn.Parameter(torch.ones(4))
    x = torch.ones(2, 4)
    assert torch.equal(net(x), Net.forward(net, x))


def test_another_module_as_an_argument_is_seen(tmp_path):
    @cache_compile(cache_dir=tmp_path, guards="inputs_unsafe", strict=True)
    def apply(module, x):
        return module(x)

    first, second = torch.nn.Linear(4, 2), torch.nn.Sequential(torch.nn.ReLU())
    x = -torch.ones(3, 4)
    for _ in range(3):
        assert torch.equal(apply(first, x), first(x))
        assert torch.equal(apply(second, x), second(x))
    assert apply.cache_info().misses == 2


RESTART = """
    import sys, torch
    sys.path.insert(0, sys.argv[2])
    from test_inputs_unsafe import Net
    from npugx_cache import cache_compile
    net = Net().eval()
    net.gain = float(sys.argv[3])
    cached = cache_compile(net, cache_dir=sys.argv[1], guards=sys.argv[4], strict=True)
    x = torch.ones(2, 4)
    assert torch.equal(cached(x), Net.forward(net, x))
    print(*cached.forward.cache_info()[:2])
"""


def test_everything_is_checked_before_an_entry_is_bound(tmp_path, request):
    def run(gain, guards):
        program, here = textwrap.dedent(RESTART), request.path.parent
        done = subprocess.run(
            [sys.executable, "-c", program, tmp_path, here, gain, guards],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert run("1.5", "full") == "0 1"
    assert run("1.5", "inputs_unsafe") == "1 0"  # the two share their entries
    assert run("2.5", "inputs_unsafe") == "0 1"
