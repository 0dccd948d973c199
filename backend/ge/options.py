"""Options of the backend ge: settings of the vendor's CompilerConfig by their names there.

`config.ge_config.oo_level = "O1"` is `options={"ge_config.oo_level": "O1"}` here, and the argument
`ge_cache=True` of the vendor's `cache_compile` is `options={"ge_cache": True}`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache.backend.options import ranges
from npugx_cache.backend.options.table import Options
from npugx_cache.errors import OptionError
from npugx_cache.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

CACHE = "ge_cache"

_ORDERS = ("BFS", "DFS", "RDFS", "StableRDFS")
_TEXT = ranges.Range("str", "expected a str", lambda value: isinstance(value, str))

SERVED = {
    CACHE: ranges.BOOLEAN,
    "experimental_config.cc_parallel_enable": ranges.BOOLEAN,
    "experimental_config.enable_view_optimize": ranges.BOOLEAN,
    "experimental_config.memory_efficiency": ranges.BOOLEAN,
    "experimental_config.static_model_ops_lower_limit": ranges.integers(-1),
    "experimental_config.tiling_schedule_optimize": ranges.BOOLEAN,
    "experimental_config.topology_sorting_strategy": ranges.choice(*_ORDERS),
    "ge_config.aicore_num": _TEXT,
    "ge_config.enable_single_stream": ranges.BOOLEAN,
    "ge_config.export_compile_stat": ranges.choice("0", "1", "2"),
    "ge_config.multistream_parallel_mode": _TEXT,
    "ge_config.oo_constant_folding": ranges.BOOLEAN,
    "ge_config.oo_dead_code_elimination": ranges.BOOLEAN,
    "ge_config.oo_level": ranges.choice("O1", "O3"),
    "ge_config.optimization_switch": _TEXT,
}
"""The options that are served, with the values of each."""

REFUSED = {
    "aclgraph_config.": "it is an option of npugraph_ex; write backend='npugraph_ex'",
    "aoe_config.": "tuning runs the graph for hours and keeps results outside the cache; tune with "
    "the vendor's compile",
    "debug.aclgraph.": "it is an option of npugraph_ex; write backend='npugraph_ex'",
    "debug.data_dump.": "a stored graph has no calls to dump; write backend='npugraph_ex', "
    "options={'dump_tensor_data': True}",
    "debug.fx_summary.": "`npugx-cache readable` shows the operators of an entry",
    "debug.graph_dump.": "`npugx-cache readable` shows the operators of an entry",
    "debug.run_eagerly": "write backend='aot_eager'",
    "dump_config.": "GE would write files at each call that no entry speaks of; write "
    "backend='npugraph_ex', options={'dump_tensor_data': True}",
    "experimental_config.aclgraph.": "it is an option of npugraph_ex; write backend='npugraph_ex'",
    "experimental_config.aot_config_": "it is for training, and the cache is for inference",
    "experimental_config.enable_ref_data": "it has addresses of this process in the graph",
    "experimental_config.frozen_parameter": "it has addresses of weights in the graph",
    "experimental_config.jit_compile": "leave it out; 'auto' is its only value",
    "experimental_config.keep_inference_input_mutations": "leave it out; writes to arguments are "
    "always kept",
    "experimental_config.npu_fx_pass": "it changes torch for the whole process",
    "experimental_config.pattern_fusion_pass": "it applies what a program registers with torchair, "
    "which is no part of a key; call the fused operators in the model",
    "experimental_config.remove_noop_ops": "leave it out; GE removes them itself",
    "export.": "an entry is not a file for ATC; use torchair.dynamo_export",
    "fusion_config.": "the file that it names is no part of a key",
    "inference_config.": "gears are not served; write dynamic=True, or one graph for each size",
    "mode": "leave it out; the argument `backend` names the way to compile",
    "npugraphex_config.": "it is an option of npugraph_ex; write backend='npugraph_ex'",
    "post_grad_custom_": "no pass of ours or yours runs before GE; write backend='npugraph_ex'",
}
"""Beginnings of names of other options of the vendor's, and why they are not served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeOptions(Options):
    """`settings`: names and values of what is served, sorted by name."""

    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def captures(self) -> bool:
        """GE runs its graph as a whole, and nothing is captured."""
        return False

    def as_factors(self) -> tuple[tuple[str, str], ...]:
        settings = ((f"ge.{name}", repr(value)) for name, value in self.settings)
        return (*Options.as_factors(self), *settings)


def parse(given: Mapping[str, Any]) -> GeOptions:
    """Check the user's options; raises OptionError that names the option and its range."""
    for name, value in given.items():
        if name not in SERVED:
            _refuse(name)
        if not SERVED[name].accepts(value):
            raise OptionError(f"option {name!r} is {value!r}; {SERVED[name].words}")
    return GeOptions(settings=tuple(sorted(given.items())))


def _refuse(name: str) -> None:
    for beginning, why in REFUSED.items():
        if name.startswith(beginning):
            raise OptionError(f"option {name!r} is not served by backend 'ge': {why}")
    from npugx_cache.backend.options.table import SPECS

    if name in SPECS:
        why = "it is an option of npugraph_ex; write backend='npugraph_ex'"
        raise OptionError(f"option {name!r} is not served by backend 'ge': {why}")
    from npugx_cache.config.foreign_names import option_error

    words = f"options of the backend 'ge' are {', '.join(sorted(SERVED))}"
    raise option_error(name, SERVED, words)
