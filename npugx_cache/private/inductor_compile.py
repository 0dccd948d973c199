"""Compiles a graph with Inductor ahead of time, by private names of torch.

Importing this module loads the compiler, so a restore must not import it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._inductor.config as inductor_config
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.utils import get_metrics_context
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._inductor import compile_fx
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.virtualized import V
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.private import schemas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_OURS: dict[str, object] = {
    "cpp_wrapper": True,
    # Parameters are arguments, so they must not become part of the library.
    "freezing": False,
    "aot_inductor.package": False,
    "aot_inductor.use_runtime_constant_folding": False,
    # Half of a library would be line numbers of a file that is deleted.
    "aot_inductor.enable_line_tables": False,
    # The guards check sizes; the library must not refuse the sizes 0 and 1.
    "aot_inductor.check_lowerbound": False,
}
"""Inductor's settings without which a library can't be stored. A torch may lack some of them."""


class NotCompiled(Exception):
    """Inductor can't make a library of the graph; the text says why."""


class SettingError(ValueError):
    """A setting does not exist, or its value has another type than the default."""


def fake_mode_of(values: Sequence[Any]) -> Any:
    """The fake mode that is active, or that traced values belong to; None if there is none."""
    return detect_fake_mode(list(values))


def fake_constant(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The fake tensor for a constant of a graph."""
    fake: torch.Tensor = mode.from_tensor(tensor, static_shapes=True)
    return fake


def fake_of_size(mode: Any, size: Any) -> torch.Tensor:
    """An empty fake tensor that carries a number as its size, because a library takes only tensors.

    Raises `NotCompiled` if the number is negative.
    """
    if not isinstance(size, (int, torch.SymInt)):
        raise NotCompiled(f"an argument is neither a tensor nor an int: {type(size).__name__}")
    if not bool(size >= 0):  # for a symbolic number, this question becomes a guard
        raise NotCompiled("a whole number among the arguments is negative")
    with mode:
        return torch.empty_strided((size,), (0,))


def compile_library(
    function: Callable[..., Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    mode: Any,
    settings: Mapping[str, Any],
) -> bytes:
    """The bytes of a shared library that does what a function of tensors does.

    The library also writes to the inputs that the function writes to. `inputs` are fake tensors of
    `mode`. The results of the function must not share memory with anything else. Sizes that
    Inductor looks at become guards. Raises `NotCompiled` and `SettingError`.
    """
    check_settings(settings)
    with _settings(settings), tempfile.TemporaryDirectory(prefix="npugx_cache_") as folder:
        try:
            graph = _functional(function, inputs, mode)
            path = _compiled(graph, inputs, mode, folder)
            return _self_contained(Path(path).read_bytes())
        except NotCompiled:
            raise
        except Exception as error:
            let_through(error)
            # Inductor raises errors of any kind; each means that it can't compile this graph.
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise NotCompiled(f"Inductor can't compile it: {first[:300]}") from error


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise `SettingError` for a setting that does not exist, or a value of a wrong type."""
    known: Any = vars(inductor_config)["_config"]
    for name, value in settings.items():
        if name not in known:
            raise SettingError(f"torch._inductor.config has no setting {name!r}")
        default: Any = functools.reduce(getattr, name.split("."), inductor_config)
        if None not in (value, default) and type(value) is not type(default):
            kinds = type(default).__name__, type(value).__name__
            raise SettingError(f"option {name!r} must be of type {kinds[0]}, not {kinds[1]}")


@contextlib.contextmanager
def _settings(settings: Mapping[str, Any]) -> Iterator[None]:
    known: Any = vars(inductor_config)["_config"]
    ours = {name: value for name, value in _OURS.items() if name in known}
    if "aot_inductor.metadata" in known:
        ours["aot_inductor.metadata"] = {}  # Inductor writes to this dict: give it one of its own
    with inductor_config.patch({**settings, **ours}):
        yield


def _functional(
    function: Callable[..., Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], mode: Any
) -> fx.GraphModule:
    """The graph in the form that Inductor takes.

    The graph computes without writing, and copies results into the written inputs at the end.
    """
    with torch.no_grad(), mode, enable_python_dispatcher(), preserve_node_meta():
        graph = make_fx(
            torch.func.functionalize(function, remove="mutations"),
            decomposition_table=select_decomp_table(),
        )(*inputs)
    for node in graph.graph.nodes:
        if schemas.acts(node.target) and schemas.is_custom(node.target):
            raise NotCompiled(f"{node.target} has no result, so that Inductor would drop the call")
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _compiled(graph: fx.GraphModule, inputs: Sequence[torch.Tensor], mode: Any, folder: str) -> str:
    """Compile the graph; return the path of the library."""
    (outputs,) = next(iter(graph.graph.find_nodes(op="output"))).args
    inner = functools.partial(compile_fx.compile_fx_inner, cpp_wrapper=True)
    with contextlib.ExitStack() as stack:
        for manager in (
            torch.no_grad(),
            V.set_aot_compilation(True),
            V.set_fake_mode(mode),
            tracing(TracingContext(mode)),
            enable_python_dispatcher(),
            get_metrics_context(),
            inductor_config.patch({"aot_inductor.output_path": f"{folder}/graph.so"}),
            inductor_config.patch(compile_fx.get_cpp_wrapper_config()),
        ):
            stack.enter_context(manager)
        made: Any = compile_fx.compile_fx_forward(
            graph,
            list(inputs),
            num_orig_model_outputs=len(outputs),
            num_example_inputs=len(inputs),
            compiler_config_extra=_make_extra(inductor_config if _TAKES_CONFIG else graph),
            inner_compile=inner,
            is_inference=True,
        )
    if not isinstance(made.filename, str):
        raise NotCompiled("Inductor made more than one file of the graph")
    return made.filename


_make_extra: Any = compile_fx.create_compiler_config_extra
_TAKES_CONFIG = "config" in inspect.signature(_make_extra).parameters
"""Until torch 2.11; since then Inductor looks at the graph as well."""


def _self_contained(library: bytes) -> bytes:
    # A call through the proxy executor needs a file beside the library, and we store one file.
    if b"aoti_torch_proxy_executor_call" in library:
        raise NotCompiled("Inductor has no C function for an operator of the graph")
    return library
