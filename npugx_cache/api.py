"""`cache_compile`, the entry point of the package, and what it makes: a `CachedFunction`.

What happens at a call, in order:

call -> a bound graph accepts it (guards checked)           -> run
     -> else an entry of the store accepts it (lookup)      -> bind, run
     -> else trace, optimise, publish, bind (lookup)        -> run
     -> else (it can't be one graph), with fullgraph=None   -> run in pieces, say why
     -> else                                                -> run eagerly, say why
"""

from __future__ import annotations

import copy
import types
import weakref
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import torch

from npugx_cache import arguments, config, events, store
from npugx_cache.backend import engines
from npugx_cache.backend import options as backend_options
from npugx_cache.binding import State
from npugx_cache.conditions.evaluate import Scope
from npugx_cache.counters import Warmed
from npugx_cache.entry import restore
from npugx_cache.entry.restore import Specialisation
from npugx_cache.errors import OptionError
from npugx_cache.events import heed_environment, logger
from npugx_cache.key import environment
from npugx_cache.key.recipe import Recipe, check_decompositions, check_options
from npugx_cache.private import runtime

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from npugx_cache.config import Settings
    from npugx_cache.counters import CacheInfo
    from npugx_cache.entry.failed_run import Failure
    from npugx_cache.events import Refusal

M = TypeVar("M", bound=torch.nn.Module)
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


class CachedFunction(Generic[P, R]):
    """A function that is compiled once for all workers of a store. Made by `cache_compile`.

    It runs under `torch.no_grad()`, cold and restored alike. In a class body it is a descriptor:
    each instance gets a binding of its own. Safe to call from several threads.
    """

    def __init__(
        self,
        recipe: Recipe,
        settings: Settings,
        owner: object | None = None,
        warm: str | None = None,
        *,
        of_class: bool = False,
    ) -> None:
        self._recipe = recipe
        self._function: Callable[..., R] = (
            recipe.function
        )  # by itself, because a trace looks at all of a recipe
        self._of_class = of_class  # it stands for the `forward` that the class of its owner has
        self._warm = warm
        self._settings = settings
        self._owner = owner
        self._kept = owner  # None where other code decides how long the owner lives
        self._module: Any = owner if of_class else None
        self._state = State(recipe, settings, owner, warm)
        self._bound: dict[int, tuple[Any, State]] = {}
        self._locals = arguments.FrameLocals(recipe.function)
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(self, name, getattr(recipe.function, name))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        given: tuple[Any, ...] = args
        if self._of_class and type(self._module).forward is not self._function:
            successor = self._successor()
            if successor is not self:
                return successor(*given, **kwargs)
        if torch.compiler.is_compiling() and _is_traced():
            owner = () if self._owner is None else (self._owner,)
            return self._function(*owner, *given, **kwargs)
        if self._owner is not None:
            given = (self._owner, *given)
        try:
            if not torch.is_grad_enabled():  # no_grad costs as much as a small function's guards
                return self._find(given, kwargs)(*given, **kwargs)
            with torch.no_grad():
                return self._find(given, kwargs, with_grad=True)(*given, **kwargs)
        except Exception as error:
            failure = self._state.failure(error)
            if failure is None:
                raise
        with torch.no_grad():
            return self._run_itself(failure, given, kwargs)

    def _find(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        warming: bool = False,
        with_grad: bool = False,
    ) -> Callable[..., R]:
        """What runs a call: the graph that accepts it, or for a bypass the function itself.

        `with_grad`: the caller has grad mode on.
        """
        function, state = self._recipe.function, self._state
        frame_locals, switches = self._locals(args, kwargs), environment.call_state()
        scope = Scope(frame_locals, function.__globals__, function.__code__, switches, self._kept)
        if known := state.specialisations.find(scope):
            return known.run
        if with_grad:
            state.lookup.tell_of_grad(frame_locals)
        if state.plan_wanted:
            state.warm()
        with events.lookup_span(self._recipe.title):
            answer = state.lookup.answer(args, kwargs, scope, warming=warming)
        return answer.run if isinstance(answer, Specialisation) else answer.runs(function)

    def _run_itself(self, failure: Failure, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Run the function in the place of a graph that raised. If it raises too, so be it."""
        function, lookup = self._recipe.function, self._state.lookup
        frame_locals, switches = self._locals(args, kwargs), environment.call_state()
        scope = Scope(frame_locals, function.__globals__, function.__code__, switches, self._kept)
        call = None
        with lookup.faults_logged():
            call = lookup.call_of(args, kwargs, scope)  # before the function may change arguments
        result: R = function(*args, **kwargs)
        if call is not None:
            with lookup.faults_logged():
                lookup.withdraw(failure, call)
        return result

    def _successor(self) -> Callable[..., R]:
        """The `forward` of a module whose class got another one, as fx's `recompile()` gives it.

        The attribute that `cache_compile` set would hide the new one (P1). Returns `self` where
        nothing changed. A `forward` that somebody else holds stays what it was, as a bound method
        does: a wrapper of the user's, or the new `forward` itself, may call it.
        """
        module, new = self._module, type(self._module).forward
        if new is self._recipe.function or vars(module).get("forward") is not self:
            return self
        if not isinstance(new, types.FunctionType):
            vars(module).pop("forward", None)
            return cast("Callable[..., R]", module.forward)
        recipe = replace(self._recipe, function=new)
        cached: CachedFunction[..., R] = CachedFunction(
            recipe, self._settings, module, self._warm, of_class=True
        )
        cached._state.lookup.count_with(self._state.lookup)
        module.forward = cached
        return cached

    def warm(self, *args: Any, **kwargs: Any) -> Warmed:
        """Restore or compile what a call with these arguments needs, without making the call.

        A new graph and the function run to be compared, if nothing is seen of that but results.
        What the call does once to a model before (`conditions.set_up`) is done.

        Without arguments: restore the entries for which earlier processes have captured device
        graphs, and capture those graphs again, the most used first. A graph that needs a caller's
        own tensors is left out; `Warmed.refused` names it.

        `Warmed.entries` counts the stored graphs that are ready, restored or compiled; where the
        graph of the call is not stored, `Warmed.refused` has the reason.
        """
        successor = self._successor() if self._of_class else self
        if successor is not self and isinstance(successor, CachedFunction):
            return successor.warm(*args, **kwargs)
        planned = not args and not kwargs
        warmed = self.warm_from_plan() if planned else Warmed()
        if self._owner is not None:
            args = (self._owner, *args)
        if not planned or arguments.accepts(self._locals, args):
            with torch.no_grad():
                runs = self._find(args, kwargs, warming=True)
            entries, graphs, refused = warmed
            if any(known.run == runs and known.entry for known in self._state.specialisations):
                return Warmed(entries + 1, graphs, refused)
            reasons = (reason for each in self.explain()[:1] for reason in each.reasons)
            return Warmed(entries, graphs, (*refused, *reasons))
        return warmed

    def warm_from_plan(self) -> Warmed:
        """Warm by capture plans only; `warm()` also compiles a function without parameters."""
        with torch.no_grad():
            return self._state.warm()

    def cache_info(self) -> CacheInfo:
        """What the lookups of this function came to in this process."""
        return self._state.info()

    def explain(self) -> tuple[Refusal, ...]:
        """What the last lookup came to, and why; empty before the first lookup.

        After a miss: why each stored entry was not used, most similar first; before them, if the
        graph could not be stored, the reason for that. After a hit: the entry that was used. After
        a bypass: its reason, and then why stored entries were not used. What is about no stored
        entry has an empty `entry`. A call that a graph of this process accepts is no lookup.
        """
        return self._state.lookup.explain_lookup()

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        function = self._recipe.function
        return function if self._owner is None else types.MethodType(function, self._owner)

    @property
    def __code__(self) -> types.CodeType:
        """The code of the function, for tools that take any callable for one: `torch.export`."""
        return self._recipe.function.__code__

    if TYPE_CHECKING:  # in a class body it is an `_Unbound`, or stays as it is

        @overload
        def __get__(self, instance: None, owner: type | None = None) -> CachedFunction[P, R]: ...
        @overload
        def __get__(
            self: CachedFunction[Concatenate[Any, Q], R],
            instance: object,
            owner: type | None = None,
        ) -> CachedFunction[Q, R]: ...
        def __get__(
            self, instance: object | None, owner: type | None = None
        ) -> CachedFunction[..., R]: ...

    def _state_of(self, instance: object) -> State:
        """The binding of one instance, kept for as long as the instance lives."""
        known = self._bound.get(id(instance))
        if known is None or known[0]() is not instance:
            try:
                reference = weakref.ref(instance, self._forget(id(instance)))
            except TypeError:  # no weak references (__slots__): all such instances share one state
                return self._state
            known = reference, State(self._recipe, self._settings, instance, self._warm)
            self._bound[id(instance)] = known
        return known[1]

    def _forget(self, key: int) -> Callable[[Any], None]:
        bound = self._bound
        return lambda _: bound.pop(key, None) and None

    def _twin(self, owner: object, state: State) -> CachedFunction[..., R]:
        twin: CachedFunction[..., R] = object.__new__(CachedFunction)
        # The function of the class keeps `state` until the instance dies, so `state` must not keep
        # the instance.
        changed = {"_owner": owner, "_kept": None, "_state": state, "_of_class": False}
        twin.__dict__.update(self.__dict__, **changed)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> CachedFunction[P, R]:
        owner = copy.deepcopy(self._owner, memo)
        return type(self)(self._recipe, self._settings, owner, self._warm, of_class=self._of_class)

    def __getstate__(self) -> tuple[Recipe, Settings, object | None, str | None, bool]:
        return self._recipe, self._settings, self._owner, self._warm, self._of_class

    def __setstate__(self, state: tuple[Recipe, Settings, object | None, str | None, bool]) -> None:
        heed_environment()
        recipe, settings, owner, warm, of_class = state  # nothing is bound in a pickled model
        CachedFunction.__init__(self, recipe, settings, owner, warm, of_class=of_class)

    def __repr__(self) -> str:
        return f"<cache_compile {self._recipe.title} {self.cache_info()}>"


class _Unbound(CachedFunction[P, R]):
    """A cached function without an owner, which is a descriptor.

    One that has an owner is no descriptor, because it may be an attribute of an instance, where
    Dynamo before torch 2.12 looks for a descriptor in the class.
    """

    def __get__(  # type: ignore[override]
        self, instance: object | None, owner: type | None = None
    ) -> CachedFunction[..., R]:
        if instance is None:
            return self
        if torch.compiler.is_dynamo_compiling():
            return cast("CachedFunction[..., R]", self._function.__get__(instance))
        return self._twin(instance, self._state_of(instance))


def _is_traced() -> bool:
    """Whether somebody else traces this call, and must see the function itself.

    In code that Dynamo traces, `is_dynamo_compiling()` is True. In code that runs it is False; then
    the state of this thread decides, because `is_compiling()` may mean another thread.
    """
    return torch.compiler.is_dynamo_compiling() or runtime.is_traced_here()


class _Arguments(TypedDict, total=False):
    backend: str
    dynamic: bool | None
    fullgraph: bool | None
    options: Mapping[str, Any] | None
    cache_dir: str | os.PathLike[str] | None
    strict: bool
    guards: str
    warm: str | None
    custom_decompositions: Mapping[Any, Any] | None
    global_rank: int | None
    tp_rank: int | None
    pp_rank: int | None


if TYPE_CHECKING:  # protocols are made slowly

    class Decorator(Protocol):
        """What `cache_compile` without a target returns."""

        @overload
        def __call__(self, target: M, /) -> M: ...  # type: ignore[overload-overlap]
        @overload
        def __call__(self, target: Callable[P, R], /) -> CachedFunction[P, R]: ...


@overload  # mypy: a module is callable too; the first match is the one meant
def cache_compile(  # type: ignore[overload-overlap]
    target: M, /, **arguments: Unpack[_Arguments]
) -> M: ...
@overload
def cache_compile(
    target: Callable[P, R], /, **arguments: Unpack[_Arguments]
) -> CachedFunction[P, R]: ...
@overload
def cache_compile(target: None = None, /, **arguments: Unpack[_Arguments]) -> Decorator: ...
def cache_compile(
    target: Any = None,
    /,
    *,
    backend: str = "npugraph_ex",
    dynamic: bool | None = None,
    fullgraph: bool | None = True,
    options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    strict: bool = False,
    guards: str = "full",
    warm: str | None = None,
    custom_decompositions: Mapping[Any, Any] | None = None,
    global_rank: int | None = None,
    tp_rank: int | None = None,
    pp_rank: int | None = None,
    **unknown: object,
) -> Any:
    """Compile a function, method or module through the cache; usable as a decorator.

    A module is changed in place (its `forward` becomes a CachedFunction) and returned. Of what
    `torch.compile` returned, that is done with what it was given.

    - `backend`: the name of the way to compile, such as `"npugraph_ex"`, `"aot_eager"`,
      `"inductor"` or `"max-autotune"`; `options` are those of the backend.
    - `dynamic`: None follows torch (static first, then dynamic where sizes changed), True makes
      sizes symbolic at once, False never.
    - `fullgraph`: True: a function that can't be one graph runs uncached, and raises under
      `strict`. None: such a function runs in pieces, as under `torch.compile`, and each piece is
      cached. False means None: torch allows breaks with False, and does not demand them.
    - `cache_dir`: the folder, before the one that the environment names.
    - `strict`: raise `Uncacheable` for a call that can't be cached and `StoreError` for faults of
      the store.
    - `guards`: "full" checks all conditions at every call; "inputs_unsafe" checks only those on
      arguments, once an entry is bound: results are wrong if a module, a global or code changes
      afterwards.
    - `warm`: "plan" captures the graphs of stored capture plans, at once for a module or a bound
      method, and at the first call of anything else.
    - `custom_decompositions`: operators, and functions that express them.
    - The ranks are accepted for compatibility and change nothing: ranks whose graphs are equal
      share an entry.

    Raises TypeError, OptionError (a ValueError) or BackendUnavailable at once for bad arguments;
    for those of other compile functions the error says what to write.
    """
    del global_rank, tp_rank, pp_rank
    if unknown:
        raise _not_ours(unknown)
    _check_arguments(dynamic, fullgraph, strict, guards, warm)
    heed_environment()
    settings = config.load(cache_dir=cache_dir, strict=strict)
    if settings.mode != "off":
        store.preload()
    engine = engines.check_name(backend)
    checked = check_options(backend_options.parse(options, engine))
    decompositions = check_decompositions(custom_decompositions)

    def decorate(target: Any) -> Any:
        decorated = runtime.uncompiled(target)
        if decorated is not target:
            logger.warning("torch.compile is left out: what it was given is cached in its place")
        is_module = isinstance(decorated, torch.nn.Module)
        inner = decorated.forward if is_module else decorated
        if isinstance(inner, CachedFunction):
            inner = inner.__wrapped__
        function, owner = arguments.split(inner)
        recipe = Recipe(
            function=function,
            title=arguments.name_of(function, owner),
            backend=engine,
            options=checked,
            dynamic=dynamic,
            guards=guards,
            breaks=not fullgraph,
            decompositions=decompositions,
        )
        of_class = is_module and type(decorated).forward is function
        kind = _Unbound if owner is None else CachedFunction
        cached: CachedFunction[..., Any] = kind(recipe, settings, owner, warm, of_class=of_class)
        if warm == "plan" and owner is not None:
            cached.warm_from_plan()
        if not is_module:
            return cached
        decorated.forward = cached
        if part := arguments.part_that_generates(decorated):
            events.warn_once(
                f"{recipe.title}: generate() runs the forward of {part} instead, which this does "
                f"not cache; to cache that, cache_compile(model.get_submodule({part!r}))"
            )
        return decorated

    return decorate if target is None else decorate(target)


def _check_arguments(
    dynamic: object, fullgraph: object, strict: object, guards: object, warm: object
) -> None:
    if dynamic is not None and not isinstance(dynamic, bool):
        raise OptionError(f"dynamic={dynamic!r}: valid values are None, True and False")
    if fullgraph is not None and not isinstance(fullgraph, bool):
        raise OptionError(
            f"fullgraph={fullgraph!r}: valid values are True (one graph or none) and None (pieces "
            "where it can't be one graph), for which False is another word"
        )
    if not isinstance(strict, bool):
        raise OptionError(f"strict={strict!r}: valid values are True and False")
    if warm not in (None, "plan"):
        raise OptionError(f"warm={warm!r}: valid values are None and 'plan'")
    if guards not in restore.GUARDS:
        raise OptionError(f"guards={guards!r}: valid values are {', '.join(restore.GUARDS)}")


def _not_ours(unknown: Mapping[str, object]) -> Exception:
    from npugx_cache.config import foreign_names

    return foreign_names.argument_error(unknown, _Arguments.__annotations__)
