"""Reasons for failed traces: the construct, the line, the user's call, and what to change."""

from __future__ import annotations

import functools
import importlib.util
import logging
import sys
import textwrap
import threading
import time
import warnings

import pytest
import torch
import torch._dynamo

from npugx_cache import cache_compile, location
from npugx_cache.trace import refuse

LIBRARY = """
    def asks(x):
        if x.sum() > 0:
            return x
        return -x

    def prints(x):
        print(x)
        return x

    def repeats(x):
        return x.new_zeros(x.sum().int().item() + 1).tolist()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("environment") / "site-packages"
    folder.mkdir()
    file = folder / "of_a_library.py"
    file.write_text(textwrap.dedent(LIBRARY))
    specification = importlib.util.spec_from_file_location("of_a_library", file)
    module = importlib.util.module_from_spec(specification)
    sys.modules["of_a_library"] = module
    specification.loader.exec_module(module)
    yield module
    del sys.modules["of_a_library"]


def reason(function):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(capture_scalar_outputs=True), pytest.raises(Exception) as info:
        compiled(torch.ones(3))
    return refuse.of_failure(info.value)


def test_a_line_of_a_library_comes_with_the_line_that_called_it(library):
    def function(x):
        return library.asks(x + 1)

    found = reason(function)
    assert "of_a_library.py:3 in asks (`if x.sum() > 0:`), called at " in found
    assert "test_refuse.py:" in found
    assert found.count("called at") == 1
    assert "in function (`return library.asks(x + 1)`)" in found


def test_a_line_of_the_user_comes_alone():
    def function(x):
        print(x)
        return x

    found = reason(function)
    assert "in function (`print(x)`)" in found
    assert "called at" not in found


@pytest.mark.parametrize("name", ["asks", "prints", "repeats"])
def test_a_reason_is_one_line_about_the_users_code(library, name):
    function = getattr(library, name)
    found = reason(lambda x: function(x))
    assert "Dynamo" not in found
    assert "torch._" not in found
    assert "\n" not in found
    assert "; to change that, " in found


LOCK = threading.Lock()


def uses_a_sparse_tensor(x):
    return x.to_sparse() + 1


def holds_a_lock(x):
    with LOCK:
        return x + 1


def counts(x):
    for _ in range(x.sum().int().item()):
        x = x + 1
    return x


def asks_for_a_line(x):
    input()
    return x


ADVICE = {
    counts: "choose with torch.where, or branch outside the cached function",
    uses_a_sparse_tensor: "convert to a dense tensor before the call",
    holds_a_lock: "enter it outside the cached function",
    asks_for_a_line: "do this outside the cached function",
}


@pytest.mark.parametrize("function", ADVICE, ids=lambda function: function.__name__)
def test_the_advice_is_ours_before_that_of_torch(function):
    assert reason(function).partition("; to change that, ")[2] == ADVICE[function]


@pytest.mark.parametrize("name", ["asks", "prints", "repeats"])
def test_the_advice_about_a_line_of_a_package_needs_no_edit_of_the_package(library, name):
    function = getattr(library, name)
    found = reason(lambda x: function(x))
    assert found.rpartition("; to change that, ")[2] == location.IN_A_PACKAGE
    assert "fullgraph" not in location.without_pieces(found)


class Vision(torch.nn.Module):
    def __init__(self, look):
        super().__init__()
        self.look = look
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(self.look(x))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x).relu()


def logged(forward):
    @functools.wraps(forward)
    def run(self, x):
        return forward(self, x)

    return run


class Language(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(layers))

    @logged
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Both(torch.nn.Module):
    def __init__(self, vision, layers=8):
        super().__init__()
        self.vision, self.language = vision, Language(layers)

    @logged
    def forward(self, x):
        return self.language(self.vision(x))


def advice_of(function, *args):
    with torch.no_grad():
        function(*args)
    ((told,),) = (each.reasons for each in function.explain())
    assert "fullgraph" not in location.without_pieces(told)
    return told.rpartition("; to change that, ")[2]


def test_the_advice_names_the_largest_part_that_the_trace_was_not_in(library):
    model = cache_compile(Both(Vision(library.prints)))
    found = advice_of(model.forward, torch.ones(3))
    part = f"{location.CACHE_A_PART}, such as self.language (89 % of the parameters)"
    assert found == location.IN_A_PACKAGE.replace(location.CACHE_A_PART, part)


def test_the_advice_about_a_part_works(library):
    model = Both(Vision(library.prints))
    cache_compile(model.language)
    with torch.no_grad():
        model(torch.ones(3))
    assert model.language.forward.cache_info().stored == 1


def test_a_part_whose_code_failed_elsewhere_is_not_named(library):
    model = torch.nn.Sequential(Both(Vision(torch.relu)), Both(Vision(library.prints), layers=2))
    found = advice_of(cache_compile(model).forward, torch.ones(3))
    assert ", such as self[0].language (67 % of the parameters)" in found


def test_a_model_that_is_an_argument_is_named_as_the_argument(library):
    def step(model, x):
        return model(library.prints(x))

    found = advice_of(cache_compile(step), Language(2), torch.ones(3))
    assert ", such as model (100 % of the parameters)" in found


def test_a_small_part_is_not_named(library):
    vision = Vision(library.prints)
    vision.layer = torch.nn.Linear(3, 300)
    model = cache_compile(torch.nn.Sequential(torch.nn.Linear(3, 3), vision))
    assert advice_of(model.forward, torch.ones(3)) == location.IN_A_PACKAGE


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        (
            "DistributedDataParallel.forward is skipped",
            "compile the module inside: cache_compile(ddp.module)",
        ),
        (
            "AlignDevicesHook.pre_forward is skipped",
            "compile the modules inside, or load the model onto one device",
        ),
        (
            "Attempted to call function marked as skipped",
            "do this outside the cached function, or in a torch.library operator",
        ),
        ("nobody knows this", "hold the tool by its handle"),
    ],
)
def test_the_advice_of_torch_is_taken_where_we_have_none(said, advice):
    text = f"{said}\n  Explanation: why\n  Hint: hold the tool by its handle"
    assert refuse.of_break(text, None).partition("; to change that, ")[2] == advice


def test_a_number_that_only_data_tells_is_named_as_that():
    found = reason(counts)
    assert found.startswith("a branch or a size depends on the data of a tensor at ")
    assert "u0" not in found.partition(" at ")[0]


def test_a_place_without_a_file_of_the_user_has_no_caller(library):
    file = library.__file__
    found = location.of_text(f'  File "{file}", line 3, in asks\n    if x.sum() > 0:\n')
    assert found.caller is None
    assert str(found).endswith("in asks (`if x.sum() > 0:`)")


def test_a_place_in_this_package_is_not_the_users(library):
    own = location.__file__
    found = location.of_text(
        f'  File "{library.__file__}", line 3, in asks\n    if x.sum() > 0:\n'
        f'  File "{own}", line 5, in of_text\n    return None\n'
    )
    assert found.function == "asks"
    assert found.caller is None


OBJECT = object()
LOGGER = logging.getLogger(__name__)


def asks_the_time(x):
    return x * time.time()


def raises(x):
    raise ValueError("no")


def defines_a_class(x):
    class Inside:
        pass

    return x * len(Inside.__name__)


def logs(x):
    LOGGER.debug("text")
    return x


def warns(x):
    warnings.warn("text", stacklevel=1)
    return x


def lists_elements(x):
    return x + len(x.tolist())


def orders_objects(x):
    return x if OBJECT < OBJECT else -x


def logs_by_name(x):
    logging.getLogger("by name").info("text")
    return x


RAISES = "the traced code raises an exception that it does not catch at "
WORDS = {
    warns: "torch can't trace the builtin warnings.warn at ",
    lists_elements: "torch traces tolist() of whole numbers alone at ",
    # Since torch 2.15 the trace says what Python says.
    orders_objects: ("torch can't trace a comparison of such objects at ", RAISES),
    asks_the_time: "torch can't trace the builtin time.time at ",
    asks_for_a_line: "torch can't trace input() of such arguments at ",
    raises: RAISES,
    defines_a_class: "torch can't trace a class that is defined inside at ",
    logs: "torch can't trace a call of a logger at ",
    logs_by_name: "torch can't trace a call of a logger at ",
}


@pytest.mark.filterwarnings("ignore:Dynamo does not know")
@pytest.mark.parametrize("function", WORDS, ids=lambda function: function.__name__)
def test_a_reason_is_in_words_about_the_users_code(function):
    assert reason(function).startswith(WORDS[function])


def test_the_advice_about_a_logger_works():
    # Not monkeypatch, whose end would delete the setting, which torch then takes for a hidden one.
    with torch._dynamo.config.patch(ignore_logger_methods={logging.Logger.debug}):
        cached = cache_compile(logs)
        cached(torch.ones(3))
        assert cached.cache_info().stored == 1
        restarted = cache_compile(logs)
        restarted(torch.ones(3))
        assert restarted.cache_info().hits == 1
