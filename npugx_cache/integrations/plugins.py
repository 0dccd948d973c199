"""The entry points of this package in serving engines: inert unless a variable asks for more.

An engine calls its function in each of its processes, before it makes a compiler. The functions
raise nothing: what goes wrong is one WARNING, and the engine starts as without this package.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from npugx_cache import config

if TYPE_CHECKING:
    from collections.abc import Callable

COMPILER = "npugx_cache.integrations.vllm.NpugxCompiler"
MEGA = "VLLM_USE_MEGA_AOT_ARTIFACT"


class Engine(NamedTuple):
    """How an engine finds us: its package, our switch, its group of entry points, and its own list.

    `allowed` is the engine's variable that names the entry points that it loads, if it is set.
    """

    package: str
    variable: str
    group: str
    allowed: str


VLLM = Engine("vllm", config.VLLM, "vllm.general_plugins", "VLLM_PLUGINS")
SGLANG = Engine("sglang", config.SGLANG, "sglang.srt.plugins", "SGLANG_PLUGINS")
ENGINES = (VLLM, SGLANG)
ENTRY_POINT = "npugx_cache"
"""The name of our entry point in each group."""


def prepare_vllm() -> None:
    """Make `NpugxCompiler` the default of vLLM's platforms, before vLLM makes a configuration.

    vLLM calls this when it looks for its platform, and `wire_vllm` later: `vllm.LLM` has written
    the default into its configuration by then. What goes wrong here goes wrong there too, which
    says so. The None that this returns says that we bring no platform.
    """
    if config.environment_variable(VLLM.variable) in ("1", "replace"):
        with contextlib.suppress(Exception):
            _prepare_vllm()


def wire_vllm() -> None:
    """Make `NpugxCompiler` the compiler of vLLM's platform, if `NPUGX_CACHE_VLLM` says so."""
    _attempt(VLLM, _wire_vllm)


def wire_sglang() -> None:
    """Make `NpugxCompiler` what sglang compiles with, if `NPUGX_CACHE_SGLANG` says so."""
    _attempt(SGLANG, _wire_sglang)


def _attempt(engine: Engine, wire: Callable[[config.Wiring], str | None]) -> None:
    if not config.environment_variable(engine.variable):
        return
    from npugx_cache import events
    from npugx_cache.errors import BackendUnavailable, OptionError

    events.heed_environment()
    try:
        wanted = config.wiring(engine.variable)
        told = None if wanted == "0" else wire(wanted)
    except (BackendUnavailable, OptionError) as error:
        events.logger.warning("%s is left as it is: %s", engine.package, error)
    except Exception:  # noqa: BLE001 - the engine starts without us
        events.logger.exception("%s is left as it is", engine.package)
    else:
        if told is not None:
            events.logger.info("%s", told)


def _prepare_vllm() -> None:
    from vllm.platforms.interface import Platform

    # vLLM can't be asked what the variable comes to while it imports itself.
    if config.environment_variable(MEGA) in (None, "0"):
        Platform.get_compile_backend = classmethod(lambda _: COMPILER)


def _wire_vllm(wanted: config.Wiring) -> str | None:
    from vllm.platforms import current_platform
    from vllm.platforms.interface import Platform

    from npugx_cache.errors import BackendUnavailable

    kind = type(current_platform)
    if kind in _wired:
        return None  # vLLM may call its plugins again
    if kind.__module__ == "vllm.platforms.cpu":
        raise BackendUnavailable(
            f"its {kind.__name__} hands a whole model to torch.compile, and asks no compiler for "
            "pieces"
        )
    theirs = current_platform.get_compile_backend()
    usual = vars(Platform)["get_compile_backend"].__func__
    is_own = getattr(kind.get_compile_backend, "__func__", None) is not usual
    if is_own and theirs == COMPILER:
        return None  # a platform that names our compiler itself
    if is_own and wanted != "replace":
        raise BackendUnavailable(
            f"{kind.__name__} brings its own compiler, {theirs}; {config.VLLM}=replace puts "
            f"{COMPILER} in its place"
        )
    if not _keeps_pieces():
        raise BackendUnavailable(
            f"with {MEGA}=1 vLLM stores a model without the graphs of another compiler, and "
            f"fails at the next start; set {MEGA}=0, or unset it"
        )
    kind.get_compile_backend = classmethod(lambda _: COMPILER)
    _wired.add(kind)
    theirs = theirs if is_own else "inductor"
    set_too = f", {MEGA}=0" if config.environment_variable(MEGA) else ""
    return (
        f"vLLM on {kind.__name__} compiles with {COMPILER} in the place of {theirs}, unless its "
        f"configuration names a backend ({config.VLLM}={wanted}{set_too})"
    )


_wired: set[type] = set()
"""The classes of vLLM's platform that compile with us."""


def _keeps_pieces() -> bool:
    """Whether vLLM stores what a compiler of pieces made; set so where the user said nothing."""
    from vllm import envs

    if MEGA not in envs.environment_variables:
        return True
    # vLLM's default depends on torch, and its own processes inherit what is set here.
    config.set_if_absent(MEGA, "0")
    return not getattr(envs, MEGA)


def _wire_sglang(wanted: config.Wiring) -> str:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def make(make_compiler: Callable[[Any], Any], given: Any) -> Any:
        if wanted != "replace" and given.compiler != "eager":
            return make_compiler(given)
        from npugx_cache.integrations.vllm import NpugxCompiler

        return NpugxCompiler()

    target = "sglang.srt.compilation.backend.make_compiler"
    HookRegistry.register(target, make, HookType.AROUND)
    theirs = "each compiler" if wanted == "replace" else "the compiler eager"
    return f"sglang compiles with {COMPILER} in the place of {theirs} ({config.SGLANG}={wanted})"
