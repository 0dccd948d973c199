"""The passes that an engine gives a compiler, as one custom pass of ours.

vllm-ascend puts a pass manager into `compiler_config`, under a name of its platform, and its own
compiler calls the manager with the lowered graph. So do we, at each start: nothing tells whether
the passes are those of another process, because their code may read anything. What they make of a
graph is not stored, unless the user answers for what they depend on (`stated_passes`).
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from npugx_cache import config
from npugx_cache.portable import NotPortable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import fx

    from npugx_cache.key.recipe import Shaping

NOT_STORED = (
    "the engine has passes of its own for the graph, and nothing tells whether they are the same "
    f"in another process; they run at each start ({config.ENGINE_PASSES}=store stores what they "
    "make, if you answer for what they depend on: docs/serving.md)"
)
_OF_INDUCTOR = ("pre_grad_", "joint_", "post_grad_", "_pre_", "_post_")
"""How Inductor's own settings for passes begin. Such passes rely on Inductor's form of a graph."""
_OPTIONS = ("post_grad_custom_pre_pass", "post_grad_custom_post_pass")


class ConfiguredPasses(NamedTuple):
    """What `compiler_config` has of passes: the engine's own, and the names of those for Inductor.

    `may_change`: the engine has a place for passes of its own, also where there are none now.
    `managers` are the objects behind `passes`.
    """

    passes: Callable[..., Any] | None
    managers: tuple[Any, ...]
    for_inductor: tuple[str, ...]
    may_change: bool

    @classmethod
    def of(cls, compiler_config: Any) -> ConfiguredPasses:
        """Raises nothing, because the engine starts without this package as well."""
        given = compiler_config if isinstance(compiler_config, dict) else {}
        inductor = sys.modules.get("torch._inductor.config")
        own, for_inductor = [], []
        for name, value in given.items():
            if not callable(value) or not isinstance(name, str):
                continue
            if name.startswith(_OF_INDUCTOR) or hasattr(inductor, name):
                for_inductor += _names(value)
            else:
                own.append(value)
        passes = [each for each in own if _names(each)]
        run = passes[0] if len(passes) == 1 else partial(_run_each, tuple(passes))
        names = tuple(dict.fromkeys(for_inductor))
        return cls(run if passes else None, tuple(passes), names, bool(own))


def _names(passes: Any) -> list[str]:
    """Of a manager those of its passes, of which it may have none."""
    held = getattr(passes, "__dict__", {}).get("passes")
    return [type(each).__name__ for each in (held if isinstance(held, list) else [passes])]


def _run_each(passes: tuple[Callable[..., Any], ...], graph_module: fx.GraphModule) -> None:
    for each in passes:
        each(graph_module)


class EnginePasses:
    """A custom pass: what the engine's passes do to a graph. `error` is what a run has raised."""

    def __init__(self, passes: Callable[..., Any], name: list[Any] | None) -> None:
        """`name` says what the passes do, for which sizes; None if nothing says that."""
        self._passes = passes
        # Another one for each graph, so that no two graphs of this process share a program.
        self._name = name or [next(_numbers)]
        self.error: Exception | None = None

    def uuid(self) -> list[Any]:
        return self._name

    def __call__(self, graph_module: fx.GraphModule, *_: Any) -> None:
        from npugx_cache.backend.passes import effects  # a hit runs no pass

        if any(effects.of(node).written for node in graph_module.graph.nodes):
            # The engine hands its passes graphs in which nothing is written.
            raise NotPortable("the graph writes to a tensor, and the engine's passes expect none")
        try:
            made = self._passes(graph_module)
        except Exception as error:
            self.error = error
            raise
        if made is not None and made is not graph_module:
            raise NotPortable("a pass of the engine gives another graph than it was given")
        graph_module.recompile()

    def shape(self, shaping: Shaping) -> Shaping:
        """What shapes a graph, with these passes; raises `NotPortable` if there is no place."""
        taken = [name for name, _ in shaping.options.functions()]
        free = next((name for name in _OPTIONS if name not in taken), None)
        if free is None:
            raise NotPortable(f"the options {' and '.join(_OPTIONS)} are taken")
        changed: Mapping[str, Any] = {free: self}
        return replace(shaping, options=replace(shaping.options, **changed))


_numbers = itertools.count()
