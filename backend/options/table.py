"""The table of options: name, type, default, range, effect, and the devices where it has one.

`docs/options.md` is generated from this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from npugx_cache.backend.options import ranges
from npugx_cache.errors import BackendUnavailable
from npugx_cache.portable import encode
from npugx_cache.records import NamedTuple, dataclass, field, fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

T = TypeVar("T")

ALL_DEVICES = ("cpu", "cuda", "npu")
NPU: Any = {"devices": ("npu",)}
GPUS: Any = {"devices": ("cuda", "npu")}
RUNNING: Any = {"shapes_graph": False}
"""Of options that say how a graph is run, and not what is in the graph."""


class Spec(NamedTuple):
    """Everything about an option besides its name and default.

    devices: the kinds of device on which the option has an effect. On a graph of other devices, a
    value other than `off` and the default is refused.
    off: the value that asks for nothing.
    needs: the option that must be on for this one to have an effect.
    vendor_default: the vendor's default in words, where ours differs.
    shapes_graph: whether another value makes another graph. An option of one kind of device counts
    as one that does, because a value without effect on a graph's devices is refused at a compile.
    """

    range: ranges.Range
    effect: str
    devices: tuple[str, ...] = ALL_DEVICES
    off: Any = False
    needs: str = ""
    vendor_default: str = ""
    shapes_graph: bool = True


def option(default: T, accepted: ranges.Range, effect: str, **rest: Any) -> T:
    spec = Spec(accepted, " ".join(effect.split()), **rest)
    return field(default=default, metadata={"spec": spec})


def switch(default: bool, effect: str, **rest: Any) -> bool:
    return option(default, ranges.BOOLEAN, effect, **rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options with the defaults filled in."""

    # --- graph passes
    remove_noop_ops: bool = switch(
        True,
        """Drops calls that return their input unchanged: views to the same sizes, aliases, and
        copies (`clone`, casts to the same type) whose absence nobody can observe.""",
    )
    remove_dead_ops: bool = switch(
        True, "Drops calls whose results nothing uses. The vendor has no switch for it."
    )
    remove_cat_ops: bool = switch(
        True,
        """Removes concatenations along the first dimension: each part is computed directly in its
        place in the result, if it has the result's type and nobody can observe the change.""",
    )
    inplace_pass: bool = switch(
        True,
        """Lets calls write their results over intermediates that are not needed any more (`add`
        becomes `add_`). Operators `foo_functional` of the NPU become `foo` and write in place.""",
    )
    input_inplace_pass: bool = switch(
        True,
        """Lets a call write directly to an input if its result is copied into the input afterwards:
        `x.copy_(x + 1)` becomes `x.add_(1)`. Matters mostly for functionalised graphs that are
        given to `compile_fx`, because graphs that we trace write to inputs where the function
        does.""",
    )
    pattern_fusion_pass: bool = switch(
        True,
        """Replaces the calls that the patterns of `register_replacement` match. A match is replaced
        only if nothing writes to its results or inputs while they are used. On an NPU, calls for
        which torch_npu has one fused operator are replaced next: `npu_add_rms_norm` with the
        quantisation or the cast after it, `bmm` with the transposes around it.""",
    )
    post_grad_custom_pre_pass: Callable[..., Any] | None = option(
        None,
        ranges.FUNCTION,
        """A function (graph_module, example_inputs, options) that changes the aten graph in place
        before all passes. Its code and the values that it captures are part of the key; if it has
        a method `uuid()`, the result of that method is instead.""",
        off=None,
    )
    post_grad_custom_post_pass: Callable[..., Any] | None = option(
        None,
        ranges.FUNCTION,
        """As `post_grad_custom_pre_pass`, but run after the fusions and before calls are made to
        write in place. The graph is not functionalised: the function must keep all writes to
        inputs, and all sharing of memory between views.""",
        off=None,
    )

    # --- capture and replay
    force_eager: bool = switch(
        False, "Runs the optimised graph call by call; nothing is captured.", **RUNNING
    )
    capture_limit: int = option(
        64,
        ranges.integers(1),
        "The largest number of graphs that are kept captured per compiled function.",
        off=64,
        **RUNNING,
    )
    clone_input: bool = switch(
        True,
        """Copies inputs into buffers that belong to the captured graph. False: the graph reads the
        caller's tensors at their addresses.""",
        off=True,
        **RUNNING,
    )
    clone_output: bool = switch(
        True,
        """Returns copies, which belong to the caller. False: returns the memory of the captured
        graph, which the next replay overwrites.""",
        off=True,
        vendor_default="False",
        **RUNNING,
    )
    frozen_parameter: bool = switch(
        False, "Trusts that parameters never move: their addresses are not checked.", **RUNNING
    )
    force_recapture: bool = switch(False, "Captures a new graph at every call.", **RUNNING)
    unsafe_skip_npugraph_capture_validation: bool = switch(
        False, "Skips all checks of whether a captured graph is still valid.", **RUNNING
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
        says only whether a pool was given, because its handle means nothing to another process.""",
        off=None,
        **GPUS,
    )

    # --- kernels of the NPU
    static_kernel_compile: bool = switch(
        False,
        """Before the first capture of a graph, has CANN's `op_compiler` compile the operators of
        the graph for exactly the shapes of that capture. To find the operators, the graph is run
        once more, on copies of the tensors that it writes to. With force_eager, kernels are
        compiled for each new tuple of symbolic sizes. Packages of kernels are kept in the store,
        except under trust `group`; without the cache each process compiles its own. If compiling
        fails, or takes longer than `NPUGX_STATIC_KERNEL_WAIT` seconds (1800), one WARNING says why,
        and the graph runs without static kernels. With CANN before 9.0.0, graphs that limit cores
        get no static kernels.""",
        **NPU,
    )
    disable_static_kernel_compile_cache: bool = switch(
        False,
        "Compiles static kernels even if the store has them, and stores none.",
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
        """The values of that size for which static kernels are compiled; None: all values. Only
        with `force_eager=True`.""",
        off=None,
        needs="static_kernel_compile",
        **NPU,
    )
    super_kernel_optimize: bool = switch(
        False,
        """Has CANN merge the kernels of a graph after its capture, with
        `NPUGraph.super_kernel_optimize`. If CANN refuses, the graph runs uncaptured, with a
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
        """Whether the graph before ("original") or after ("optimized") the passes is dumped. With
        "original", no pass runs at all.""",
        off="optimized",
        needs="dump_tensor_data",
    )
    data_dump_dir: str = option(
        "./",
        ranges.FOLDER,
        """The folder that dumps are written to, made absolute when the function is decorated. The
        program contains the path, so the path is part of the key.""",
        off="./",
        needs="dump_tensor_data",
    )
    deadlock_check: bool = switch(
        False,
        """After each capture, logs a WARNING for communication kernels on several streams that may
        run at once and together need more vector cores than the device has.""",
        **NPU,
    )
    record_statistics_debug_info: bool = switch(
        False,
        """Logs minimum, maximum, norm and mean of all inputs and outputs of a graph at DEBUG, at
        every call. Each call then waits for the device.""",
        **RUNNING,
    )

    @property
    def captures(self) -> bool:
        """Whether calls may go through captured graphs, if the backend captures."""
        return True

    def as_factors(self) -> tuple[tuple[str, str], ...]:
        """The name and the value as text of every option that shapes the graph.

        Those with functions are left out (`functions`). A custom pass is given all options, so all
        of them may shape its graph.
        """
        every = any(True for _ in self.functions())
        return tuple(
            (name, _factor(name, getattr(self, name)))
            for name in sorted(SPECS)
            if not callable(getattr(self, name)) and (every or SPECS[name].shapes_graph)
        )

    def functions(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """The options that are user functions. The caller must hash their code, not their repr."""
        for name in sorted(SPECS):
            value = getattr(self, name)
            if callable(value):
                yield name, value

    def require_devices(self, devices: Iterable[str]) -> None:
        """Raise BackendUnavailable for an option without effect on a graph of these device kinds.

        If a graph is on several kinds of device, one that fits is enough. An option with its
        default value is never refused.
        """
        present, defaults = set(devices), Options()
        refused = [
            name
            for name, spec in SPECS.items()
            if getattr(self, name) not in (spec.off, getattr(defaults, name))
            and present
            and not present & set(spec.devices)
        ]
        if not refused:
            return
        # A pool that is given switches off another option, which the user may not know.
        name = "use_graph_pool" if "use_graph_pool" in refused else refused[0]
        raise BackendUnavailable(
            f"option {name!r} has an effect on {_words(SPECS[name].devices)} only; this graph is "
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
"""The options of capture and replay. Every backend that captures has them."""

SPECS: dict[str, Spec] = {each.name: each.metadata["spec"] for each in fields(Options)}
"""All options by name, in the order of docs/options.md."""


def _factor(name: str, value: Any) -> str:
    if name == "use_graph_pool":
        return repr(value is not None)
    return repr(encode(value)) if isinstance(value, dict) else repr(value)


def _words(devices: Iterable[str]) -> str:
    return " and ".join(devices)
