"""`NpugxCompiler`: the compiler interface of vLLM, and of engines that took it over (sglang).

The engine traces a model, cuts the graph at attention, and asks for something that runs each piece.
The engine captures the calls on the device by itself, so nothing is captured here.
Neither engine is imported here.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from npugx_cache import config, events
from npugx_cache.backend import engines
from npugx_cache.backend import options as backend_options
from npugx_cache.errors import BackendUnavailable, PassError
from npugx_cache.integrations import engine_passes
from npugx_cache.integrations.engine_passes import EnginePasses
from npugx_cache.integrations.engine_sizes import EngineSizes
from npugx_cache.integrations.plugins import MEGA
from npugx_cache.key import environment
from npugx_cache.key.fingerprint import Fingerprint
from npugx_cache.key.recipe import Shaping, check_options
from npugx_cache.pieces import compiled, dynamo
from npugx_cache.portable import NotPortable
from npugx_cache.private import runtime
from npugx_cache.store_client import StoreClient
from npugx_cache.trace.apart import fakes_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx

    from npugx_cache.pieces.cached_graph import CachedGraph

    Handle = tuple[str, str]

_INTERFACES = (
    "vllm.compilation.compiler_interface",
    "sglang.srt.compilation.compiler_interface",
)


class NpugxCompiler:
    """Runs the pieces of an engine's model from the cache; for inference.

    The store is that of `cache_compile` (`NPUGX_CACHE_DIR`), shared by all ranks, workers and
    models. The folder of the engine is not used. A subclass may change `backend` and `options`.
    """

    name = "npugx"
    backend: ClassVar[str] = "npugraph_ex"
    options: ClassVar[Mapping[str, Any]] = {
        "force_eager": True,
        "inplace_pass": False,
        "clone_input": False,
        "clone_output": False,
    }

    def __new__(cls, *graph: Any) -> Any:
        """An instance of the interfaces of the engines that are loaded: engines ask for that.

        In the modes in which vLLM cuts no model into pieces, vLLM calls the class as a backend of
        `torch.compile`, with a graph and example inputs, and gets what runs the graph.
        """
        if graph:
            return dynamo.backend(*graph)
        loaded = [sys.modules[name] for name in _INTERFACES if name in sys.modules]
        bases = [each.CompilerInterface for each in loaded if hasattr(each, "CompilerInterface")]
        bases = [base for base in bases if not issubclass(cls, base)]
        made = type(cls.__name__, (cls, *bases), {"__module__": cls.__module__}) if bases else cls
        return object.__new__(made)

    def __init__(self) -> None:
        engine = engines.check_name(self.backend)
        self._shaping = Shaping(
            backend=engine,
            options=check_options(backend_options.parse(self.options, engine)),
            decompositions=(),
        )
        self._settings = config.load()
        self._stores_passes = config.engine_passes() == "store"
        self._configuration: str | None = None

    def compute_hash(self, engine_config: Any = None, *_: Any) -> str:
        """What names the folder in which the engine keeps handles, besides the engine's own.

        `engine_config`: the engine's configuration, with a method `compute_hash`.
        """
        if hasattr(engine_config, "compute_hash"):
            self._configuration = str(engine_config.compute_hash())
        kind = runtime.accelerator()
        devices = frozenset({"cpu"} if kind is None else {"cpu", kind})
        factors = [*self._shaping.shaping_factors(), *environment.factors(devices, traced=False)]
        return Fingerprint.of(factors).key[:10]

    def initialize_cache(
        self, cache_dir: str, disable_cache: bool = False, prefix: str = ""
    ) -> None:
        """Get ready; raises `BackendUnavailable` for a setting under which vLLM can't restart.

        `disable_cache`: each process compiles for itself, and reads and writes no store.
        """
        del cache_dir, prefix
        events.heed_environment()
        if disable_cache:
            self._settings = replace(self._settings, mode="off")
        elif _keeps_one_artifact():
            raise BackendUnavailable(
                f"{MEGA} is on: vLLM would store the model without the graphs of this compiler, "
                f"and fail at the next start; set {MEGA}=0"
            )

    def compile(
        self,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        compiler_config: Any = None,
        compile_range: Any = None,
        key: str | None = None,
    ) -> tuple[Callable[..., Any], Handle | None]:
        """What runs a graph, from the cache if it can be, and a handle if it is stored.

        `compile_range` is None, one size, or the first and the last size of a range. Passes that
        `compiler_config` has under a name of the engine are run, and nothing is stored then, unless
        `NPUGX_CACHE_ENGINE_PASSES=store`. Those for Inductor are not run.
        """
        del key
        configured = engine_passes.ConfiguredPasses.of(compiler_config)
        if configured.for_inductor and configured.passes is None:
            names = ", ".join(configured.for_inductor)
            events.warn_once(f"passes of the engine for Inductor are not run: {names}")
        run, entry = self._answer(graph, example_inputs, compile_range, configured)
        return run, None if entry is None or configured.may_change else (entry, "")

    def load(
        self,
        handle: Handle,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        graph_index: int,
        compile_range: Any = None,
    ) -> Callable[..., Any]:
        """What runs a graph: as `compile`, as the handle may be of other code, or of no entry."""
        del handle, graph_index
        return self._answer(graph, example_inputs, compile_range)[0]

    def _answer(
        self,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        compile_range: Any,
        configured: engine_passes.ConfiguredPasses | None = None,
    ) -> tuple[Callable[..., Any], str | None]:
        title = f"a graph of the engine with {len(example_inputs)} inputs"
        client = StoreClient(title, self._shaping.backend, self._settings, compiled.counters)

        def answer() -> CachedGraph | compiled.Bypassed:
            sizes = EngineSizes.of(compile_range)
            shaping, settings, theirs = self._shaping, self._settings, None
            if configured is not None and configured.passes is not None:
                name = self._name_of_passes(configured)
                if isinstance(name, compiled.Bypassed):
                    client.tell_of_bypass(*name)
                    settings = replace(settings, mode="off")
                    theirs = EnginePasses(configured.passes, None)
                else:
                    theirs = EnginePasses(configured.passes, [name, sizes.first, sizes.last])
                shaping = theirs.shape(shaping)
            with fakes_apart(example_inputs, sizes.last, is_size=sizes.is_one) as inputs:
                try:
                    run = compiled.of_graph(
                        graph, inputs, shaping, settings, captures=False, is_apart=True
                    )
                except PassError:
                    if theirs is None or theirs.error is None or settings.strict:
                        raise
                    events.logger.exception("%s: a pass of the engine failed", title)
                    return compiled.Bypassed(f"a pass of the engine raises {theirs.error!r}")
                unmet = sizes.unmet_condition(inputs)
                return compiled.Bypassed(unmet) if unmet else run

        run = compiled.attempt_answer(answer, client)
        if isinstance(run, compiled.Bypassed):
            client.tell_of_bypass(*run)
            return graph.forward, None
        return run, run.entry

    def _name_of_passes(
        self, configured: engine_passes.ConfiguredPasses
    ) -> str | compiled.Bypassed:
        """What the engine's passes are called in a key, if the user answers for them."""
        if not self._stores_passes:
            return compiled.Bypassed(engine_passes.NOT_STORED)
        if self._configuration is None:
            return compiled.Bypassed("the engine has not told the hash of its configuration")
        from npugx_cache.integrations import stated_passes

        try:
            return stated_passes.name_of(configured.managers, self._configuration)
        except NotPortable as error:
            return compiled.Bypassed(f"the passes of the engine have no name in a key: {error}")


def _keeps_one_artifact() -> bool:
    """Whether vLLM stores a model as one file, which it makes of another compiler's results."""
    vllm_settings = sys.modules.get("vllm.envs")
    if vllm_settings is not None:
        return bool(getattr(vllm_settings, MEGA, False))
    return config.environment_variable(MEGA) not in (None, "", "0")
