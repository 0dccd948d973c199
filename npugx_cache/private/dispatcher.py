"""Reads what Python code has registered with torch's dispatcher, and asks which function it calls.

torch notes the name of each Python kernel (`torch.library._impls`), and no function. So we call a
kernel with empty arguments, and stop the call at its first frame, before the frame runs anything.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import re
import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch._library import custom_ops, simple_registry

from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator, Mapping

_impls: set[str] = vars(torch.library)["_impls"]

_finalize: Any = weakref.finalize
_own: tuple[str, list[set[str]]] = "", []
"""How many objects with an end there had been (`weakref.finalize`), and then the names of kernels
of each library."""


def version() -> tuple[int, str, int]:
    """Differs from the one before if Python code has registered a kernel since, or removed one.

    The number of all kernels does not tell, because one may have come where another went. But then
    a library was made meanwhile, each of which registers what to do at its end; or the number of
    kernels of one that was there is another one.
    """
    global _own  # noqa: PLW0603 - a fact about the process
    made = repr(_finalize._index_iter)
    if made != _own[0]:
        ends = _finalize._registry.copy().values()
        _own = made, [each.args[1] for each in ends if each.func is _end]
    return len(_impls), made, sum(map(len, _own[1]))


_end: Any = vars(torch.library)["_del_library"]


def names() -> frozenset[str]:
    """The names of all Python kernels."""
    return frozenset(_impls)


def has_changed(since: frozenset[str]) -> bool:
    return _impls != since


KeySet = torch._C.DispatchKeySet


class Entry(NamedTuple):
    """What the dispatcher calls: the code, its globals, and its arguments, defaults and closure."""

    code: types.CodeType
    space: Mapping[str, Any]
    values: Mapping[str, Any]


def keys_of(qualname: str) -> dict[str, bool]:
    """The keys under which a kernel may run while a graph is traced, and whether Python made it."""
    prefix = f"{qualname.replace('::', '/', 1)}/"
    found = _REGISTERED.findall(torch._C._dispatch_dump(qualname))
    keys = (torch._C.DispatchKey.__members__.keys() & found) - _BACKENDS
    return {key: f"{prefix}{key}" in _impls for key in sorted(keys)}


_REGISTERED = re.compile(r"^(\w+)(?:\[alias\])?: ", re.MULTILINE)
"""A key in torch's text about an operator; what is in effect no more begins with another word."""


def entry_of(operator: Any, key: str) -> Entry | None:
    """The Python function that runs for an operator under a key; None if there is nothing to run.

    Raises `LookupError` for a kernel that is no Python function, or that can't be asked.
    """
    qualname = operator.name()
    if torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough(qualname, key):
        return None
    found: list[Entry] = []

    def stop(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call":
            found.append(Entry(frame.f_code, frame.f_globals, dict(frame.f_locals)))
            raise _Stopped

    try:
        args, kwargs = _arguments(operator)
        before: Any = sys.getprofile()
        # A mode of the user's would be asked before the kernel, and be taken for the kernel.
        with torch._C.DisableTorchFunction(), _without_collection():
            sys.setprofile(stop)
            try:
                operator._op_dk(getattr(torch._C.DispatchKey, key), *args, **kwargs)
            finally:
                sys.setprofile(before)
    except _Stopped:
        return found[0]
    except Exception as error:  # noqa: BLE001 - a kernel may refuse arguments in any way
        raise LookupError(str(error).partition("\n")[0]) from None
    raise LookupError("it is no function of Python")


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Let no garbage be collected: a finalizer or a callback would be taken for the kernel."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _Stopped(BaseException):
    """Ends a call of a kernel; no handler of the user's may catch it."""


def _arguments(operator: Any) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = [], {}
    for each in operator._schema.arguments:
        if each.has_default_value():
            continue
        kind = str(each.type)
        value = [] if kind.startswith("List") else _values().get(kind)
        if each.kwarg_only:
            kwargs[each.name] = value
        else:
            args.append(value)
    return args, kwargs


@functools.cache
def _values() -> dict[str, Any]:
    """An empty value of each type of argument; the tensor is on a device that always exists."""
    with torch._C._DisableTorchDispatch():
        tensor = torch.empty(0, device="cpu")
    plain = {"int": 0, "float": 0.0, "bool": False, "str": "", "number": 0, "complex": 0j}
    return {"Tensor": tensor, "Device": torch.device("cpu"), **plain}


def is_empty_tensor(value: object) -> bool:
    """Whether it is the tensor that `entry_of` hands to a kernel."""
    return value is _values()["Tensor"]


class Rules(NamedTuple):
    """What is registered for an operator besides kernels."""

    functions: dict[str, Any]
    """Python functions: the fake implementation, the rules of vmap and of classes."""
    words: dict[str, str]
    """Plain values: the dtypes of autocast, the effect, the tags."""


def rules_of(operator: Any) -> Rules:
    qualname = operator.name()
    functions: dict[str, Any] = {}
    words = {"tags": " ".join(sorted(map(str, operator.tags))), "effect": "None"}
    entry: Any = simple_registry.singleton._data.get(qualname)
    if entry is not None:
        if entry.fake_impl.kernel is not None:
            functions["fake"] = entry.fake_impl.kernel.func
        for cls, rule in entry.torch_dispatch_rules._data.items():
            functions[f"rule for {cls.__module__}.{cls.__qualname__}"] = rule
        words["effect"] = str(getattr(getattr(entry, "effect", None), "effect", None))
    for key, kernel in operator.py_kernels.items():
        functions[f"for the Python dispatcher, {key}"] = kernel
    made = defined_in_python(qualname)
    if made is not None:
        functions["fake of the definition"] = made._abstract_fn
        functions["vmap"] = getattr(made, "_vmap_fn", None)
        for cls, rule in made._torch_dispatch_fns.items():
            functions[f"rule of {cls.__module__}.{cls.__qualname__}"] = rule
        for kind, dtype in getattr(made, "_autocast_dtype", {}).items():
            words[f"autocast on {kind}"] = str(dtype)
    return Rules(functions, words)


def defined_in_python(qualname: str) -> Any:
    """The definition of an operator by `torch.library.custom_op`, or None."""
    return custom_ops.OPDEFS.get(qualname)


def is_of_torch_library(module: str) -> bool:
    """Whether code of torch's only hands calls on to functions that users registered."""
    return module == "torch.library" or module.startswith("torch._library")


def foreign_kernels() -> list[tuple[str, str]]:
    """The Python kernels of torch's own operators that torch does not have: operator and key."""
    found = _FOREIGN.findall("\n".join(_impls))  # at once: a restore pays for each call
    return sorted((f"{space}::{name}", key or _DEFAULT_KEY) for space, name, key in found)


_OF_TORCH = {
    "aten": ("Meta",),
    "prims": (
        *("Meta", "Autograd", "CompositeExplicitAutograd"),
        *("BackendSelect", "Conjugate", "Negative"),
    ),
}
"""The keys under which torch itself registers Python kernels of its operators."""
_OWN = "|".join(f"{space}/.*/(?:{'|'.join(keys)})$" for space, keys in _OF_TORCH.items())
_FOREIGN = re.compile(rf"^(?!{_OWN})({'|'.join(_OF_TORCH)})/(.*)/(\w*)$", re.MULTILINE)
_DEFAULT_KEY = "CompositeImplicitAutograd"
"""What `Library.impl` takes if it is given no key."""

_BACKENDS = frozenset(
    f"{kind}{device}"
    for kind in ("", "Quantized", "Sparse", "SparseCsr", "NestedTensor")
    for device in (
        *("CPU", "CUDA", "HIP", "XLA", "MPS", "IPU", "XPU", "HPU", "VE", "Lazy", "MTIA", "MAIA"),
        *("PrivateUse1", "PrivateUse2", "PrivateUse3", ""),
    )
) - {""}


def runs_only_on_data(key: str) -> bool:
    """Whether a kernel under a key is for tensors of a device: no trace runs such a kernel."""
    return key in _BACKENDS


def has_kernel(operator: Any, device: str) -> bool:
    """Whether an operator has a kernel of its own for a type of device, such as "cpu".

    Without one, torch takes a composite operator apart on this device.
    """
    key = torch._C._dispatch_key_for_device(device)
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has(operator.name(), key) or has(operator.name(), f"Autograd{key}"))


def is_replaced(operator: Any) -> bool:
    """Whether Python code has registered a kernel of an operator for data on some device."""
    return not _impls.isdisjoint(_kernels_for_data(operator.name()))


@functools.lru_cache(maxsize=1024)
def _kernels_for_data(operator: str) -> frozenset[str]:
    """How torch would note the kernels of an operator: passes ask again for each node."""
    prefix = operator.replace("::", "/", 1)
    return frozenset(f"{prefix}/{key}" for key in _BACKENDS)
