"""The table of options: name, type, default, range, effect, and the devices it has an effect on.

`docs/options.md` is generated from this file.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from npugx_cache.backend.options import ranges
from npugx_cache.backend.options.spec import GPUS, NPU, Spec, option, switch
from npugx_cache.errors import BackendUnavailable
from npugx_cache.portable import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options, defaults filled in. Each is a factor of the fingerprint."""

    # --- graph passes
    remove_noop_ops: bool = switch(
        True,
        """Drops calls that return their input unchanged: views to the same sizes, aliases, and
        copies (`clone`, casts to the same type) that nobody can tell from what they copy.""",
    )
    remove_dead_ops: bool = switch(
        True, "Drops calls whose results nothing uses. The vendor has no switch for it."
    )
    remove_cat_ops: bool = switch(
        True,
        """Removes concatenations along the first dimension: the parts are computed where they
        belong in the result, if they have its type and nobody else could see that.""",
    )
    inplace_pass: bool = switch(
        True,
        """Lets calls write their results over intermediates that are not needed any more (`add`
        becomes `add_`). Operators `foo_functional` of the NPU become `foo` and write in place.""",
    )
    input_inplace_pass: bool = switch(
        True,
        """Lets calls write to an input what is copied into it afterwards: `x.copy_(x + 1)` becomes
        `x.add_(1)`. Graphs that are traced here write to inputs where the function does, so this
        matters mostly for functionalised graphs that are given to `compile_fx`.""",
    )
    pattern_fusion_pass: bool = switch(
        True,
        """Replaces what the patterns of `register_replacement` match. A match stands only where
        nothing writes to its results or inputs while they are used. After them, on an NPU, the
        calls that torch_npu has one operator for: `npu_add_rms_norm` with the quantisation or
        the cast after it, `bmm` with the transposes around it.""",
    )
    post_grad_custom_pre_pass: Callable[..., Any] | None = option(
        None,
        ranges.FUNCTION,
        """A function (graph_module, example_inputs, options) that changes the aten graph in place
        before all passes. It counts by its code and what it captures, or by what its method
        `uuid()` returns.""",
        off=None,
    )
    post_grad_custom_post_pass: Callable[..., Any] | None = option(
        None,
        ranges.FUNCTION,
        """The same after the fusions, before calls are made to write in place. The graph is not
        functionalised: what is written to inputs or seen through views must stay so.""",
        off=None,
    )

    # --- capture and replay
    force_eager: bool = switch(False, "Runs the optimised graph call by call; nothing is captured.")
    capture_limit: int = option(
        64,
        ranges.integers(1),
        "The largest number of graphs that are kept captured per compiled function.",
        off=64,
    )
    clone_input: bool = switch(
        True,
        """Copies inputs into buffers that belong to the captured graph. False: the graph reads the
        caller's tensors at their addresses.""",
        off=True,
    )
    clone_output: bool = switch(
        True, "Returns copies, which are the caller's own.", off=True, vendor_default="False"
    )
    frozen_parameter: bool = switch(
        False, "Trusts that parameters never move: their addresses are not checked."
    )
    force_recapture: bool = switch(False, "Captures anew at every call.")
    unsafe_skip_npugraph_capture_validation: bool = switch(
        False, "Leaves out all checks whether a captured graph is still valid."
    )
    capture_error_mode: str | None = option(
        None,
        ranges.CAPTURE_MODE,
        """What other threads may do on the device while a graph is captured. None: "global" on an
        NPU, "thread_local" on a GPU, where NCCL's thread does what "global" forbids.""",
        off=None,
        vendor_default="'global'",
        **GPUS,
    )
    reuse_graph_pool_in_same_fx: bool = switch(
        True,
        "Lets the captured graphs of one function use the same memory one after the other.",
        off=True,
        **GPUS,
    )
    use_graph_pool: tuple[int, int] | None = option(
        None,
        ranges.POOL,
        """Captures into this memory pool. Turns reuse_graph_pool_in_same_fx off. The fingerprint
        holds whether one was given, not which: a handle means nothing to another process.""",
        off=None,
        **GPUS,
    )

    # --- kernels of the NPU
    static_kernel_compile: bool = switch(
        False,
        """Has CANN's `op_compiler` compile the operators of a graph for the very shapes of its
        first capture, before it: the graph is run once for that, on copies of what it writes to.
        With force_eager, for each new tuple of symbolic sizes. Packages of kernels are kept in the
        store, except under trust `group`; without the cache each process compiles its own. Where
        that fails, or `NPUGX_STATIC_KERNEL_WAIT` seconds (1800) are over, one WARNING says why, and
        the graph runs without. With CANN before 9.0.0 not for graphs that limit cores.""",
        **NPU,
    )
    disable_static_kernel_compile_cache: bool = switch(
        False,
        "Compiles static kernels even where the store has them, and stores none.",
        needs="static_kernel_compile",
        **NPU,
    )
    _vllm_aclnn_static_kernel_sym_index: int = option(
        0,
        ranges.integers(0),
        """Which symbolic size, counted from 0 in the order of the graph's inputs, is compared with
        the range below. Only with `force_eager=True`.""",
        off=0,
        needs="static_kernel_compile",
        **NPU,
    )
    _vllm_aclnn_static_kernel_sym_range: tuple[int, ...] | None = option(
        None,
        ranges.INTEGERS,
        """For which values of that size static kernels are compiled; None: for all. Only with
        `force_eager=True`.""",
        off=None,
        needs="static_kernel_compile",
        **NPU,
    )
    super_kernel_optimize: bool = switch(
        False,
        """Has CANN merge the kernels of a graph after its capture, with
        `NPUGraph.super_kernel_optimize`. Where CANN refuses, the graph runs uncaptured, with a
        warning.""",
        **NPU,
    )
    super_kernel_optimize_options: Mapping[str, Any] | None = option(
        None,
        ranges.SETTINGS,
        "Passed on to `NPUGraph.super_kernel_optimize` as `optimize_options`.",
        off=None,
        needs="super_kernel_optimize",
        **NPU,
    )
    super_kernel_debug_options: Mapping[str, Any] | None = option(
        None,
        ranges.SETTINGS,
        "Passed on to `NPUGraph.super_kernel_optimize` as `debug_options`.",
        off=None,
        needs="super_kernel_optimize",
        **NPU,
    )

    # --- looking inside
    dump_tensor_data: bool = switch(
        False,
        """Writes the result of every call of the graph to a file, at every call, as
        `worldsize<W>_global_rank<R>/<node>_device_<d>_<n>.pt` for `torch.load`. The program runs
        call by call; nothing is captured.""",
    )
    data_dump_stage: str = option(
        "optimized",
        ranges.choice("original", "optimized"),
        "Whether the graph before or after the passes is dumped. Before: no pass runs at all.",
        off="optimized",
        needs="dump_tensor_data",
    )
    data_dump_dir: str = option(
        "./",
        ranges.FOLDER,
        """The folder that dumps are written to, made absolute when the function is decorated. It
        is written in the program, so it is part of the key.""",
        off="./",
        needs="dump_tensor_data",
    )
    deadlock_check: bool = switch(
        False,
        """Logs a WARNING, after each capture, for communication kernels on several streams that may
        run at once and need more vector cores together than the device has.""",
        **NPU,
    )
    record_statistics_debug_info: bool = switch(
        False,
        """Logs minimum, maximum, norm and mean of all inputs and outputs of a graph at DEBUG, at
        every call. Each call then waits for the device.""",
    )

    @property
    def captures(self) -> bool:
        """Whether calls may go through captured graphs, for a backend that has such."""
        return True

    def as_factors(self) -> tuple[tuple[str, str], ...]:
        """Every option that has a value of its own, as text; functions are left to `functions`."""
        return tuple(
            (name, _factor(name, getattr(self, name)))
            for name in sorted(SPECS)
            if not callable(getattr(self, name))
        )

    def functions(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """Options that are user functions: they count by what they do, not by `repr`."""
        for name in sorted(SPECS):
            value = getattr(self, name)
            if callable(value):
                yield name, value

    def require_devices(self, devices: Iterable[str]) -> None:
        """Refuse options without effect on a graph of these kinds of device.

        Raises BackendUnavailable. A graph on several kinds of device is fine if one of them fits,
        and nobody asked for a default.
        """
        present, defaults = set(devices), Options()
        for name, spec in SPECS.items():
            asked = getattr(self, name) not in (spec.off, getattr(defaults, name))
            if asked and present and not present & set(spec.devices):
                raise BackendUnavailable(
                    f"option {name!r} has an effect on {_words(spec.devices)} only; this graph is "
                    f"on {_words(sorted(present))}"
                )


CAPTURE = frozenset(
    {
        "force_eager",
        "capture_limit",
        "clone_input",
        "clone_output",
        "frozen_parameter",
        "force_recapture",
        "unsafe_skip_npugraph_capture_validation",
        "capture_error_mode",
        "reuse_graph_pool_in_same_fx",
        "use_graph_pool",
    }
)
"""Options of capture and replay, which every backend that captures has."""

SPECS: dict[str, Spec] = {each.name: each.metadata["spec"] for each in fields(Options)}
"""The table, by name, in the order of the page."""


def _factor(name: str, value: Any) -> str:
    if name == "use_graph_pool":
        return repr(value is not None)
    return repr(encode(value)) if isinstance(value, dict) else repr(value)


def _words(devices: Iterable[str]) -> str:
    return " and ".join(devices)
