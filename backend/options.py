"""Options of a backend: names, types, defaults and ranges as the vendor's npugraph_ex has them.

Checked when a function is decorated, not at its first call. What this version does not do yet is
refused by name rather than ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npugx_cache.errors import BackendUnavailable, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_CAPTURE_LIMIT = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options, defaults filled in.

    remove_noop_ops: drop operators that return their input unchanged.
    remove_dead_ops: drop operators whose results are unused.
    force_eager, capture_limit, clone_input, clone_output: how a capturing device captures and
    replays. A CPU captures nothing: its program is called directly and its outputs are always the
    caller's own.
    """

    remove_noop_ops: bool = True
    remove_dead_ops: bool = True
    force_eager: bool = False
    capture_limit: int = 64
    clone_input: bool = True
    clone_output: bool = True

    def as_factors(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, repr(getattr(self, name))) for name in sorted(self.__slots__))


_PLANNED = frozenset(
    {
        "inplace_pass",
        "input_inplace_pass",
        "pattern_fusion_pass",
        "remove_cat_ops",
        "reuse_graph_pool_in_same_fx",
        "use_graph_pool",
        "frozen_parameter",
        "capture_error_mode",
        "force_recapture",
        "static_kernel_compile",
        "disable_static_kernel_compile_cache",
        "super_kernel_optimize",
        "super_kernel_optimize_options",
        "super_kernel_debug_options",
        "post_grad_custom_pre_pass",
        "post_grad_custom_post_pass",
        "dump_tensor_data",
        "data_dump_stage",
        "data_dump_dir",
        "deadlock_check",
        "unsafe_skip_npugraph_capture_validation",
        "record_statistics_debug_info",
    }
)
"""Options of the vendor's that exist and that this version has no part for."""


def parse(options: Mapping[str, Any] | None) -> Options:
    """Check user options; raises `OptionError` (a ValueError) naming the option and its range."""
    given = dict(options or {})
    defaults = Options()
    for name, value in given.items():
        if name in _PLANNED:
            if value is False or value is None:
                continue  # asks for what is the case anyway
            raise BackendUnavailable(
                f"option {name!r} of npugraph_ex is not implemented in this version; leave it out"
            )
        if name not in Options.__slots__:
            raise OptionError(
                f"unknown option {name!r}; valid options are {', '.join(sorted(Options.__slots__))}"
            )
        _check(name, value, type(getattr(defaults, name)))
    return Options(**{name: value for name, value in given.items() if name not in _PLANNED})


def _check(name: str, value: object, kind: type) -> None:
    if kind is bool:
        if not isinstance(
            value, bool
        ):  # 0 and 1 are refused: the vendor's export turns them to "0"
            raise OptionError(f"option {name!r} is {value!r}; valid values are True and False")
    elif isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(f"option {name!r} is {value!r}; expected an int")
    elif not 1 <= value <= MAX_CAPTURE_LIMIT:
        raise OptionError(f"option {name!r} is {value}; valid range is 1 to {MAX_CAPTURE_LIMIT}")
