"""What Dynamo reads during a trace without installing a guard, as data.

A hook notes which question Dynamo answered, and about what. A hook does not decide what follows:
`trace.conditions.observed` turns each observation into a condition, or the trace is refused. Code
that looks at a finished trace (`trace.conditions.surroundings`) makes observations as well.

Two things that hooks do are no observations. Where torch has a guard for what Dynamo read, a hook
installs that guard (`torch_guards`). And hooks keep some state among themselves while a trace runs,
such as how a set came about: `Recorder.state`, which is gone when the trace has ended.
"""

from __future__ import annotations

import contextlib
import enum
import functools
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from torch._guards import TracingContext

from npugx_cache import location

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Iterator
    from traceback import FrameSummary

_State = TypeVar("_State")


class Question(enum.Enum):
    """What can be asked, about an owner and with an argument. Nothing else can be observed."""

    ENVIRONMENT = "the value of the environment variable `owner`"
    ANSWER = "what the process answers to `owner`, such as its rank"
    HIDDEN = "whether globals still lack the name `argument`; `owner` is the step to the globals"
    SET_ORDER = "in which order a set is walked: `argument` is a `set_history.Walk`"
    SET_CALLED = "what a function of Python's own makes of a set, which it walks as it likes"
    KEY_ORDER = "the order of an OrderedDict; `argument`: whether move_to_end had changed that"
    NAME = "in which class `argument` is found, when it is looked up in the class `owner`"
    VALUE = "the value of `argument` in the class `owner`, which was read without a guard"
    FUNCTION_VALUE = "the attribute `argument` of the function `owner`, read without a guard"
    SUBCLASS = "whether the class `owner` is derived from the class `argument`"
    SUBCLASSES = "the subclasses of the class `owner`; `argument`: those that the trace was given"
    MEMBERS = "the members of the enumeration `owner`"
    SPECIAL_NAMES = "the special methods of the class `owner`, which Python looks up by itself"
    METHODS = "what the functions in the class `owner` captured: the trace made an object of it"
    CONSTANT = "what the function `owner` gave, which is marked as constant; `argument`: given what"
    GENERATED = "which code a library writes for the call `owner` (module, name, arguments)"
    CHILD = "that the module at the source `owner` gives the name `argument` from one of its dicts"
    TENSOR_METHOD = "what the method `argument` of torch.Tensor is"
    IMPORT = "that the code imports the module with the name `argument`"
    DEVICE = "which device a constant is; `owner`: the source that it was read from, if any"
    INDEX = "the index of a device; `argument` says how the trace came to look at the index"
    APART = "which of the sources `owner` lead to one object, and which to different ones"
    THREAD_LOCAL = "attributes of thread-locals of the class `owner`, which the code writes"
    UNCHECKABLE = "what no condition can check: `argument` says what that is"
    UNWATCHED = "what a hook would have seen that is missing: `argument` says what that is"


@dataclass(frozen=True, slots=True)
class Observation:
    """One thing that Dynamo read. `where` is the place in the user's code, if a refusal needs it.

    Two observations of one thing are equal, wherever they were made.
    """

    question: Question
    owner: Any = None
    argument: Any = None
    where: location.Place | None = field(default=None, compare=False)


class Recorder:
    """Collects the observations of one trace: each of them once, in the order of the trace.

    `stack` is where the trace was at the first refusal, outermost frame first.
    """

    def __init__(self) -> None:
        self._found: dict[Observation, Observation] = {}
        self._states: dict[type, Any] = {}
        self.stack: Iterable[FrameSummary] = ()

    def note(
        self,
        question: Question,
        owner: Any = None,
        argument: Any = None,
        where: location.Place | None = None,
    ) -> None:
        found = Observation(question, owner, argument, where)
        self._found.setdefault(found, found)

    def refuse(
        self,
        what: str,
        question: Question = Question.UNCHECKABLE,
        where: location.Place | None = None,
    ) -> None:
        """Note what can't be checked, by default at the place that the trace has come to."""
        if Observation(question, None, what) in self._found:
            return
        stack = TracingContext.extract_stack() if where is None else ()
        self.stack = self.stack or stack
        self.note(question, None, what, where or location.of_frames(stack))

    def observations(self) -> tuple[Observation, ...]:
        return tuple(self._found)

    def state(self, kind: type[_State]) -> _State:
        """What hooks of one module remember during the trace: an object of a class of theirs."""
        if (found := self._states.get(kind)) is None:
            found = self._states[kind] = kind()
        state: _State = found
        return state


_current: ContextVar[Recorder | None] = ContextVar("npugx_observations", default=None)

current = _current.get
"""Where the hooks note what they see: None in traces that are not ours."""


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Observe the trace that is made inside. The hooks must be in place (`hook_table`)."""
    token = _current.set(recorder)
    try:
        yield
    finally:
        _current.reset(token)


def around(hook: Callable[..., Any], state: type | None = None) -> Callable[[Any], Any]:
    """Let `hook(recorder, original, ...)` stand for a function of Dynamo's in traces of ours.

    With `state`, the hook takes what `Recorder.state` gives for that in the place of the recorder.
    """
    _hooks.add(hook.__code__)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call_hook(*args: Any, **kwargs: Any) -> Any:
            recorder = _current.get()
            if recorder is None:
                return original(*args, **kwargs)
            first = recorder if state is None else recorder.state(state)
            return hook(first, original, *args, **kwargs)

        return call_hook

    return make


def where(answer: bool, ask: Callable[..., bool]) -> Callable[[Any], Any]:
    """Let `ask` decide where a function of Dynamo's gives this answer, in traces of ours."""
    _hooks.add(ask.__code__)

    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        @functools.wraps(original)
        def ask_again(*args: Any) -> bool:
            first = original(*args)
            return first if first is not answer or _current.get() is None else ask(*args)

        return ask_again

    return make


def noting(note: Callable[..., None]) -> Callable[[Any], Any]:
    """Call `note` with the recorder and the arguments of a function before the function."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def note_first(*args: Any, **kwargs: Any) -> Any:
            recorder = _current.get()
            if recorder is not None:
                note(recorder, *args, **kwargs)
            return original(*args, **kwargs)

        return note_first

    return make


def before(look: Callable[..., None]) -> Callable[[Any], Any]:
    """Call `look` with the arguments of a function before the function, in traces of ours."""
    return noting(lambda _, *args, **kwargs: look(*args, **kwargs))


_hooks: set[types.CodeType] = set()


def passes_on(code: types.CodeType) -> bool:
    """Whether code in a stack stands for a function of Dynamo's, and only passes a call on."""
    return code in _hooks or code.co_filename == passes_on.__code__.co_filename


def place_of_the_trace() -> location.Place | None:
    """The line of the user's code that Dynamo traces now."""
    return location.of_frames(TracingContext.extract_stack())


def refusal(observed: Iterable[Observation], question: Question) -> str | None:
    """Why a trace is of no use, if there is an answer to that question, which can't be checked."""
    found = next((each for each in observed if each.question is question), None)
    if found is None:
        return None
    change = _CHANGE[question]
    if question is Question.UNCHECKABLE and found.where is not None and found.where.is_installed:
        change = location.CACHE_A_PART
    return location.reason(found.argument, found.where, change)


_CHANGE = {
    Question.UNCHECKABLE: "do this outside the cached function",
    Question.UNWATCHED: "use a torch that this release was made for",
}
