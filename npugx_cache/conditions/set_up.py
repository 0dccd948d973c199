"""What a library does once to a model, at the first call that needs it, and what no trace can do.

transformers installs hooks on the modules of a model when somebody first asks for hidden states or
router logits. It does that under a lock, which a trace can't take, and the hooks are part of what a
graph was traced from: a restarted process would refuse its first call, and hit at its second. So
the cache calls the library's own function before it traces the call, or looks it up once more.

That is right for a function only if nobody can tell whether the function ran at its line or a
little earlier, and if it does nothing when it runs once more. So each function is named here, with
its code: one that was edited, or that a release of the library changed, is left to the refusal.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
import types
from typing import Any, NamedTuple

import torch

from npugx_cache.portable import code_hash


class SetUp(NamedTuple):
    """A set-up that a call needs: `name` is one of `_KNOWN`, `model` what the set-up changes."""

    name: str
    model: torch.nn.Module

    def perform(self) -> None:
        """Do it as the library does. Raises what the library raises."""
        _live(self.name)(self.model)


def due(name: str, model: object) -> SetUp | None:
    """The set-up of a model by this function, if it is known as it is now, and is not done yet."""
    known = _KNOWN.get(name)
    if known is None or not isinstance(model, torch.nn.Module):
        return None
    if getattr(model, known.done, False) or not _is_as_known(name, known):
        return None
    return SetUp(name, model)


def name_of(function: Any) -> str | None:
    """The name among the set-ups of a function that a trace has come to, or None."""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', '')}"
    return name if name in _KNOWN and _live(name) is function else None


def is_unrelated(name: str, value: object) -> bool:
    """Whether the set-up does not read this object, which the call has changed before it."""
    cls = type(value)
    return f"{cls.__module__}.{cls.__qualname__}" in _KNOWN[name].unrelated


class _Known(NamedTuple):
    """A function of a library that sets a model up.

    `done` is the attribute of a model that says that the model is set up. `bodies` are the
    functions that decide whether to do it, and say that it is done, with the digests (`_digest`)
    that they have in some release or other. `unrelated` are classes of objects that code before the
    set-up may change, and that the set-up does not read.
    """

    done: str
    bodies: dict[str, frozenset[str]]
    unrelated: frozenset[str]


def _live(name: str) -> Any:
    module, _, function = name.rpartition(".")
    return vars(sys.modules[module])[function] if module in sys.modules else None


def _is_as_known(name: str, known: _Known) -> bool:
    module = name.rpartition(".")[0]
    if module not in sys.modules:
        return False
    names = vars(sys.modules[module])
    return all(
        type(names.get(each)) is types.FunctionType
        and names[each].__globals__ is names
        and _digest(names[each]) in digests
        for each, digests in known.bodies.items()
    )


_ANNOTATIONS = 0x1000000  # `from __future__ import annotations`, as a flag of code and of compile


def _digest(function: types.FunctionType) -> str | None:
    """The SHA-256 of what a function says, without its docstring and its annotations.

    None if the file does not say what the function does, because it was edited meanwhile.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    [made] = tree.body
    if not isinstance(made, ast.FunctionDef) or made.decorator_list:
        return None
    if ast.get_docstring(made) is not None:  # replaced, because the code has a place for it
        made.body[0] = ast.Expr(ast.Constant("..."))
    made.returns = None
    for argument in ast.walk(made.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    text = ast.unparse(tree)
    names: dict[str, Any] = {}
    flags = function.__code__.co_flags & _ANNOTATIONS  # it is part of the code's hash
    exec(compile(text, __file__, "exec", flags, dont_inherit=True), names)  # noqa: S102 - defines it
    if _hash(names[made.name]) != _hash(function):
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def _hash(function: types.FunctionType) -> str:
    """A hash of what a function does, and of its defaults; its docstring does not count."""
    code, text = function.__code__, function.__doc__
    if text is not None and code.co_consts[:1] == (text,):
        code = code.replace(co_consts=(None, *code.co_consts[1:]))
    return f"{code_hash(code)} {function.__defaults__!r} {function.__kwdefaults__!r}"


_KNOWN = {
    "transformers.utils.output_capturing.maybe_install_capturing_hooks": _Known(
        done="_output_capturing_hooks_installed",
        bodies={
            "maybe_install_capturing_hooks": frozenset(
                {"1c145d62da703dbb310dfcb76ab7acf1c733bf2fda24c7b3c9e404a4e1811c19"}
            ),
            "install_all_output_capturing_hooks": frozenset(
                {
                    # 5.5 to 5.15 and later, and 5.23
                    "3ab41275a5d4b7dfebc214c8f70157250a8b26144e58ed4f0a46788c6847e9f7",
                    "b903c186f6159bc783edcefcc93d740d02107b78d0df9fb8b8c6977e4c0ae565",
                }
            ),
        },
        unrelated=frozenset({"transformers.utils.output_capturing.CompileableContextVar"}),
    )
}
