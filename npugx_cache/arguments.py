"""Turns the arguments of a call into the locals of its frame, and checks what can be decorated."""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

_VARARGS, _VARKW = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS


def split(target: object) -> tuple[types.FunctionType, object | None]:
    """The plain function behind a target, and the object that it is bound to; raises TypeError."""
    if isinstance(target, functools.partial):
        _refuse_coroutine(_unwrap_partial(target))
        return cast("types.FunctionType", call_partial), target
    function = target.__func__ if isinstance(target, types.MethodType) else target
    owner = target.__self__ if isinstance(target, types.MethodType) else None
    if not isinstance(function, types.FunctionType):
        hint = ""
        if isinstance(function, (staticmethod, classmethod, property)):
            hint = f"; put @{type(function).__name__} above @cache_compile"
        if type(function).__name__.startswith("Script"):
            hint = ", which TorchScript compiled; give the module that it was made of"
        elif isinstance(getattr(target, "__call__", None), types.MethodType):  # noqa: B004 - the method
            hint = "; give its method `__call__`"
        raise TypeError(
            "cache_compile takes a Python function, a bound method, a functools.partial of these, "
            f"or an nn.Module, not a {type(target).__qualname__}{hint}"
        )
    _refuse_coroutine(function)
    return function, owner


def _refuse_coroutine(function: Any) -> None:
    for test in (
        inspect.isgeneratorfunction,
        inspect.iscoroutinefunction,
        inspect.isasyncgenfunction,
    ):
        if test(function):
            raise TypeError(f"{function.__qualname__} is a generator or a coroutine, and no graph")


def call_partial(part: functools.partial[Any], /, *args: Any, **kwargs: Any) -> Any:
    """The traced function of a partial, which is its owner: so a copy of a module has its own."""
    return part(*args, **kwargs)


def _unwrap_partial(part: functools.partial[Any]) -> Any:
    called: Any = part
    while isinstance(called, functools.partial):
        called = called.func
    return called


def name_of(function: types.FunctionType, owner: object = None) -> str:
    """A partial has the name of the function that it calls."""
    named = _unwrap_partial(owner) if isinstance(owner, functools.partial) else function
    qualname = getattr(named, "__qualname__", type(named).__qualname__)
    return f"{getattr(named, '__module__', None) or type(named).__module__}.{qualname}"


def part_that_generates(model: Any) -> str:
    """The name of the submodule whose `forward` a call of `model.generate()` runs, or "".

    A wrapper, such as peft's, hands `generate` on to a model of transformers inside, which does not
    know of the wrapper and its `forward`.
    """
    if not _hands_generate_on(model):
        return ""
    parts = ((name, part) for name, part in model.named_modules() if part is not model)
    found = (name for name, part in parts if _generate_of(part).startswith(_GENERATES))
    return next(found, "")


def _hands_generate_on(model: Any) -> bool:
    own = _code_of_generate(model)
    if own is None or _generate_of(model).startswith(_GENERATES):
        return False
    return "generate" in own.co_names


def _generate_of(model: object) -> str:
    return getattr(_code_of_generate(model), "co_qualname", "")


def _code_of_generate(model: object) -> types.CodeType | None:
    method = inspect.getattr_static(type(model), "generate", None)
    return getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None


_GENERATES = "GenerationMixin."
"""The class of transformers whose `generate` calls the model itself."""


def reference(owner: object) -> Callable[[], object]:
    """A function that returns the owner as long as it lives, without keeping it alive."""
    try:
        return weakref.ref(owner)
    except TypeError:  # no owner, or an owner with __slots__
        return lambda: None


def accepts(frame_locals: FrameLocals, args: tuple[Any, ...]) -> bool:
    """Whether a function can be called with these arguments alone."""
    try:
        frame_locals(args, {})
    except TypeError:
        return False
    return True


class FrameLocals:
    """Binds arguments the way Python does, at the speed of a Python call.

    The names are those of the code object. A decorator's `__signature__` or `__wrapped__` is
    ignored, because the frame that Dynamo traces has the names of the code object as well.
    """

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        self._bind = _binder(function.__code__)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Frame locals of a call, with free variables; raises TypeError like the call itself."""
        function, bind = self._function, self._bind
        bind.__defaults__ = function.__defaults__  # may be replaced at run time
        bind.__kwdefaults__ = function.__kwdefaults__
        try:
            frame_locals: dict[str, Any] = bind(*args, **kwargs)
        except TypeError as error:
            raise _error_of(function, args, kwargs, error) from None
        cells = function.__closure__
        if cells is None:
            return frame_locals
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            try:
                frame_locals[name] = cell.cell_contents
            except ValueError:  # the cell is empty: the function would raise NameError
                continue
        return frame_locals


def _error_of(
    function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError
) -> TypeError:
    """What Python raises for arguments that don't fit a function; it names the function.

    No code of the function runs, because its parameters are the ones that `error` is about.
    """
    try:
        function(*args, **kwargs)
    except TypeError as raised:
        return raised.with_traceback(None)
    return error


def _binder(code: types.CodeType) -> Callable[..., Any]:
    """A function with the parameters of `code` that returns them by name."""
    positional = list(code.co_varnames[: code.co_argcount])
    keyword = list(code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount])
    rest = list(code.co_varnames[code.co_argcount + code.co_kwonlyargcount :])
    parameters = positional[:]
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    names = positional + keyword
    varargs = rest.pop(0) if code.co_flags & _VARARGS else ""
    if varargs or keyword:
        parameters.append(f"*{varargs}")
    parameters += keyword
    varkw = rest.pop(0) if code.co_flags & _VARKW else ""
    if varkw:
        parameters.append(f"**{varkw}")
    names += [name for name in (varargs, varkw) if name]
    # Defaults are set on the function afterwards; Python allows that for any parameter.
    body = ", ".join(f"{name!r}: {name}" for name in names)
    namespace: dict[str, Any] = {}
    # Names of parameters are identifiers: they come from a code object.
    exec(f"def bind({', '.join(parameters)}): return {{{body}}}", namespace)  # noqa: S102
    binder: Callable[..., Any] = namespace["bind"]
    return binder
