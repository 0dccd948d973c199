"""Names that other compile functions take, and what to write here in their place.

Users come with lines that they wrote for torch.compile, torchair or the vendor's npugraph_ex. A
name of theirs that has no meaning here is told what replaces it.
Only code that is about to raise imports this module.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from npugx_cache.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

ARGUMENTS = {
    "compiler_config": "write what the config object sets as options={...}",
    "config": "write what the config object sets as options={...}, "
    "such as options={'capture_limit': 64}",
    "disable": "leave it out; call the function itself where nothing is to be compiled, "
    "or set NPUGX_CACHE=off where nothing is to be stored",
    "dynamic_shapes": "write dynamic=True",
    "ge_cache": "write backend='max-autotune', options={'ge_cache': True} for the graph engine "
    "(GE); leave it out for every other backend",
    "isolate_recompiles": "leave it out; each function has entries of its own",
    "mode": "leave it out; backend='npugraph_ex', the default, captures and replays graphs on an "
    "NPU as 'reduce-overhead' does, and backend='inductor' takes Inductor's settings as options, "
    "such as {'max_autotune': True}",
    "name": "leave it out; the name of the function is taken",
    "recompile_limit": "leave it out; several sizes share an entry with dynamic=True",
    "shapes_spec": "write dynamic=True",
}
"""Arguments of torch.compile and of torchair's cache_compile and get_npu_backend."""

OPTIONS = {
    "enable_shape_handling": "leave it out and write dynamic=True as an argument",
    "mode": "leave it out; the argument `backend` names the way to compile",
    "tiling_schedule_optimize": "it is an option of the graph engine (GE); write "
    "backend='max-autotune', options={'experimental_config.tiling_schedule_optimize': True}",
    "trace.enabled": "it is a setting of Inductor; write backend='inductor', "
    "or set TORCH_COMPILE_DEBUG=1 for the graph after each pass",
    "triton.cudagraphs": "leave it out, backend='npugraph_ex' captures by itself; "
    "or write backend='inductor'",
}
"""Options of the vendor's other backends."""

BACKENDS = {
    "GeConcreteGraph": "it is a class of the vendor's GE mode; write 'max-autotune'",
    "eager": "write 'aot_eager'",
    "npu": "it is the vendor's GE mode; write 'max-autotune'",
    "npugx": "write 'npugraph_ex'; torch.compile knows it as 'npugx'",
    "reduce-overhead": "it is the old name of 'npugraph_ex'; write 'npugraph_ex'",
}
"""Names of backends elsewhere."""

OBJECT = (
    "write the name of a backend; for torchair.get_npu_backend(compiler_config=...) write "
    "backend='npugraph_ex', or 'max-autotune' for its mode of that name, and what the config "
    "object sets as options={...}"
)


def argument_error(given: Iterable[str], valid: Iterable[str]) -> TypeError:
    """The error for arguments that `cache_compile` does not have, in Python's own words first."""
    valid = [*valid]
    told = []
    for name in given:
        what = f"cache_compile() got an unexpected keyword argument {name!r}"
        known = ARGUMENTS.get(name)
        told.append(f"{what}: {known}" if known else what + _did_you_mean(name, valid))
    return TypeError("; ".join(told))


def option_error(name: str, valid: Iterable[str], words: str) -> OptionError:
    """The error for an option that is not among the `valid` ones; `words` tell which these are."""
    if name in OPTIONS:
        return OptionError(f"unknown option {name!r}: {OPTIONS[name]}")
    return OptionError(f"unknown option {name!r}; {words}{_did_you_mean(name, valid)}")


def _did_you_mean(name: str, valid: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, [*valid], n=1)
    return f". Did you mean {close[0]!r}?" if close else ""
