"""Checks the options of a backend. They have the names and meanings of the vendor's npugraph_ex.

Options are checked when a function is decorated, not at its first call. An option that can't have
an effect is refused by name, never ignored. `table` lists all options.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

from npugx_cache.backend.options.table import SPECS, Options, Spec
from npugx_cache.errors import BackendUnavailable, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["SPECS", "Options", "Spec", "parse"]

_EXCLUDE_EACH_OTHER = {
    ("use_graph_pool", "reuse_graph_pool_in_same_fx"): (
        "a pool that others use too can't be rolled back"
    ),
    ("static_kernel_compile", "dump_tensor_data"): "CANN would compile kernels for the dumps",
    ("super_kernel_optimize", "dump_tensor_data"): "merged kernels have no intermediate results",
    ("force_eager", "use_graph_pool"): "nothing is captured",
    ("force_eager", "force_recapture"): "nothing is captured",
    ("force_eager", "unsafe_skip_npugraph_capture_validation"): "nothing is captured",
    ("force_eager", "super_kernel_optimize"): "nothing is captured",
    ("force_eager", "deadlock_check"): "nothing is captured",
}
"""Options that can't be on together, and why."""

_DEFAULTS = Options()
_DONE_BY_PASSES = ("post_grad_custom_pre_pass", "post_grad_custom_post_pass", "dump_tensor_data")
_WITHOUT_PASSES = ("aot_eager", "npugraphs", "cudagraphs")

_ONLY_UNDER_FORCE_EAGER = (
    "_vllm_aclnn_static_kernel_sym_index",
    "_vllm_aclnn_static_kernel_sym_range",
)


def parse(options: Mapping[str, Any] | None, backend: str = "npugraph_ex") -> Options:
    """Check the user's options and fill in the defaults.

    Raises `OptionError` (a ValueError) that names the option and its range, and
    `BackendUnavailable` for an option that needs an NPU where torch_npu is not installed.
    """
    if backend == "ge":
        from npugx_cache.backend.ge import options as ge

        return ge.parse(options or {})
    if backend != "inductor":
        parsed = Options(**_checked(dict(options or {})))
        _check_backend(parsed, options or {}, backend)
        return parsed
    from npugx_cache.backend.options import inductor

    capture, settings = inductor.split(options or {})
    return inductor.InductorOptions(**_checked(capture), settings=settings)


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments for `Options`, checked and in a form that the caller can't change."""
    for name, value in given.items():
        if name not in SPECS:
            from npugx_cache.config.foreign_names import option_error

            raise option_error(name, SPECS, f"valid options are {', '.join(sorted(SPECS))}")
        _check(name, value, SPECS[name])
    if given.get("use_graph_pool") is not None:
        given.setdefault("reuse_graph_pool_in_same_fx", False)
    kept = {name: _kept(value) for name, value in given.items()}
    parsed = Options(**kept)
    _check_conflicts(parsed)
    if parsed.dump_tensor_data:
        # The program contains this path: a later chdir must not send the dumps elsewhere.
        kept["data_dump_dir"] = os.path.abspath(parsed.data_dump_dir)  # noqa: PTH100
    return kept


def _check(name: str, value: object, spec: Spec) -> None:
    if not spec.range.accepts(value):
        raise OptionError(f"option {name!r} is {value!r}; {spec.range.words}")
    if value == spec.off:
        return
    if spec.devices == ("npu",) and not _npu_is_possible():
        raise BackendUnavailable(
            f"option {name!r} has an effect on an NPU only, but torch_npu is not installed"
        )


def _npu_is_possible() -> bool:
    return "torch_npu" in sys.modules or importlib.util.find_spec("torch_npu") is not None


def _check_conflicts(options: Options) -> None:
    for name, spec in SPECS.items():
        if spec.needs and getattr(options, name) != spec.off and not getattr(options, spec.needs):
            raise OptionError(f"option {name!r} has an effect only with {spec.needs}=True")
    for (name, other), why in _EXCLUDE_EACH_OTHER.items():
        if getattr(options, name) and getattr(options, other):
            raise OptionError(f"options {name!r} and {other!r} exclude each other: {why}")
    for name in _ONLY_UNDER_FORCE_EAGER if not options.force_eager else ():
        if getattr(options, name) != SPECS[name].off:
            raise OptionError(f"option {name!r} has an effect only with force_eager=True")


def _check_backend(options: Options, given: Iterable[str], backend: str) -> None:
    """Raise OptionError for an option that this backend would ignore.

    An option with its default value is accepted: a function may be given all defaults explicitly.
    """
    for name in given if backend in _WITHOUT_PASSES else ():
        if getattr(options, name) in (SPECS[name].off, getattr(_DEFAULTS, name)):
            continue
        if name in _DONE_BY_PASSES:
            why = "runs no graph passes"
        elif backend == "aot_eager" and name != "force_eager":
            why = "captures nothing"
        else:
            continue
        raise OptionError(f"option {name!r} has no effect with {backend!r}, which {why}")


def _kept(value: Any) -> Any:
    """A copy of a value that the caller can't change afterwards."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return dict(value) if isinstance(value, dict) else value
