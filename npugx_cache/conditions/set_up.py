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
import __future__

import sys
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
    functions that decide whether to do it, and say that it is done; each as it is in some release
    or other. `unrelated` are classes of objects that code before the set-up may change, and that
    the set-up does not read.
    """

    done: str
    bodies: dict[str, tuple[str, ...]]
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
        and _hash(names[each]) in [_hash(_made(each, text)) for text in texts]
        for each, texts in known.bodies.items()
    )


def _made(name: str, text: str) -> types.FunctionType:
    names: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    exec(compile(text, __file__, "exec", flags, dont_inherit=True), names)  # noqa: S102 - ours
    made: types.FunctionType = names[name]
    return made


def _hash(function: types.FunctionType) -> str:
    """A hash of what a function does, and of its defaults; its docstring does not count."""
    code, text = function.__code__, function.__doc__
    if text is not None and code.co_consts[:1] == (text,):
        code = code.replace(co_consts=(None, *code.co_consts[1:]))
    return f"{code_hash(code)} {function.__defaults__!r} {function.__kwdefaults__!r}"


_INSTALL = '''
def install_all_output_capturing_hooks(model, prefix=None):
    """..."""
    capture_flags = {flags}

    capture_tasks = []
    for key, layer_specs in capture_flags.items():
        if not isinstance(layer_specs, list):
            layer_specs = [layer_specs]
        for specs in layer_specs:
            if not isinstance(specs, OutputRecorder):
                index = 0 if "hidden_states" in key else 1
                class_name = None if not isinstance(specs, str) else specs
                target_class = specs if not isinstance(specs, str) else None
                specs = OutputRecorder(
                    target_class=target_class, index=index, class_name=class_name
                )
            capture_tasks.append((key, specs))

    prefix = prefix if prefix is not None else ""
    recursively_install_hooks(model, prefix, capture_tasks)
    setattr(model, "_output_capturing_hooks_installed", True)
'''
_MAYBE_INSTALL = '''
def maybe_install_capturing_hooks(model):
    """..."""
    if getattr(model, "_output_capturing_hooks_installed", False):
        return

    with _hook_installation_lock:
        if getattr(model, "_output_capturing_hooks_installed", False):
            return
        install_all_output_capturing_hooks(model)
'''
_KNOWN = {
    "transformers.utils.output_capturing.maybe_install_capturing_hooks": _Known(
        done="_output_capturing_hooks_installed",
        bodies={
            "maybe_install_capturing_hooks": (_MAYBE_INSTALL,),
            "install_all_output_capturing_hooks": (
                # transformers 5.5 to 5.15 and later, and 5.23
                _INSTALL.format(flags="_CAN_RECORD_REGISTRY.get(str(model.__class__)) or {}"),
                _INSTALL.format(flags="_CAN_RECORD_REGISTRY.get(model)"),
            ),
        },
        unrelated=frozenset({"transformers.utils.output_capturing.CompileableContextVar"}),
    )
}
