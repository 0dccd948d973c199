"""Options of the backend inductor: Inductor's own settings, and our options of capture.

With `triton.cudagraphs=True` our runtime, not Inductor, captures the library. Only then do the
options of capture have an effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache.backend.options.table import CAPTURE, Options
from npugx_cache.errors import OptionError
from npugx_cache.portable import NotPortable, encode
from npugx_cache.private import inductor_run
from npugx_cache.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

CUDAGRAPHS = "triton.cudagraphs"

_FIXED = ("cpp_wrapper", "fx_wrapper", "freezing", "aot_inductor.", "aot_inductor_mode.")
_FREE = frozenset({"aot_inductor.compile_wrapper_opt_level"})


@dataclass(frozen=True, slots=True, kw_only=True)
class InductorOptions(Options):
    """`settings`: names and values of settings of `torch._inductor.config`, sorted by name."""

    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def captures(self) -> bool:
        """Whether calls go through captured graphs."""
        return bool(dict(self.settings).get(CUDAGRAPHS))

    def as_factors(self) -> tuple[tuple[str, str], ...]:
        settings = ((f"inductor.{name}", repr(value)) for name, value in self.settings)
        return (*Options.as_factors(self), *settings)


def split(given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[tuple[str, Any], ...]]:
    """Separate our options of capture from Inductor's settings; raises OptionError."""
    capture = {name: value for name, value in given.items() if name in CAPTURE}
    settings = {name: value for name, value in given.items() if name not in CAPTURE}
    for name, value in settings.items():
        _check(name, value)
    if capture and not settings.get(CUDAGRAPHS):
        raise OptionError(f"option {min(capture)!r} has an effect only with {CUDAGRAPHS}=True")
    return capture, tuple(sorted(settings.items()))


def _check(name: str, value: object) -> None:
    # The types are checked at the first compile, because the check loads Inductor, and a restarted
    # worker must not load Inductor.
    if name not in inductor_run.setting_names():
        from npugx_cache.config.foreign_names import option_error

        words = (
            "options of the backend 'inductor' are the settings of torch._inductor.config and, "
            f"with {CUDAGRAPHS}=True, {', '.join(sorted(CAPTURE))}"
        )
        raise option_error(name, [*CAPTURE, *inductor_run.setting_names()], words)
    if name.startswith(_FIXED) and name not in _FREE:
        raise OptionError(f"option {name!r} is set by npugx_cache; leave it out")
    try:
        encode(value)
    except NotPortable as error:
        raise OptionError(f"option {name!r} is {value!r}; expected plain data: {error}") from None
