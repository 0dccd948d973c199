"""Which serving engines are installed, and whether they compile with us. Imports none of them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import NamedTuple

from npugx_cache import config
from npugx_cache.cli import opening, versions
from npugx_cache.integrations import plugins


class Installed(NamedTuple):
    """`obstacle`: why the engine does not compile with us, or None."""

    engine: str
    version: str
    wiring: config.Wiring
    obstacle: str | None

    def __str__(self) -> str:
        wired = f"wired ({self.wiring})" if self.obstacle is None else f"not wired: {self.obstacle}"
        return f"{self.version}, {wired}"


def installed_engines() -> list[Installed]:
    """The engines that this interpreter would import; raises WrongInput for a wrong value."""
    return [
        Installed(each.package, _version(each.package), wired, _obstacle(each, wired))
        for each, wired in ((each, opening.wiring(each.variable)) for each in plugins.ENGINES)
        if versions.is_installed(each.package)
    ]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # sources on the path
        return "of no known version"


def _obstacle(engine: plugins.Engine, wired: config.Wiring) -> str | None:
    if wired == "0":
        return f"{engine.variable}=1 is not set"
    found = {each.value for each in entry_points(group=engine.group)}
    if not any(value.startswith(plugins.__name__) for value in found):
        return f"the entry point of npugx_cache in {engine.group} is not installed"
    allowed = config.environment_variable(engine.allowed)
    if allowed is not None and plugins.ENTRY_POINT not in allowed.split(","):
        return f"{engine.allowed} does not name {plugins.ENTRY_POINT}"
    if engine is not plugins.VLLM:
        return None
    if config.environment_variable(plugins.MEGA) == "1":
        return f"{plugins.MEGA}=1 is set"
    if wired == "1" and versions.is_installed("vllm_ascend"):
        return f"vllm_ascend brings its own compiler; set {engine.variable}=replace"
    return None
