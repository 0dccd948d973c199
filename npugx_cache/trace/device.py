"""Decides whether an entry runs on any current device, or only on the device index of its trace.

An entry runs on any current device if everything that the trace touched was on the current device,
and if no traced code names an index or looks at one. If we can't tell, we assume that the entry is
tied to the index. The worst case is a needless recompile on other devices.
"""

from __future__ import annotations

import dis
import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from npugx_cache.backend import subgraphs
from npugx_cache.backend.program import STREAMS
from npugx_cache.conditions import Kind, Step
from npugx_cache.portable import devices
from npugx_cache.portable.devices import Accelerator
from npugx_cache.private import runtime, schemas
from npugx_cache.trace.conditions.source_facts import is_covered
from npugx_cache.trace.observe.observation import Question

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Iterator

    from npugx_cache.conditions import Conditions
    from npugx_cache.entry.frame import Frame
    from npugx_cache.trace.conditions.builder import TreeBuilder
    from npugx_cache.trace.conditions.source_facts import Owners
    from npugx_cache.trace.dynamo import DynamoTrace
    from npugx_cache.trace.observe.observation import Observation

_INDEXED = re.compile(r"[a-z][a-z0-9_]*:\d+")
_ASKS = frozenset({"current_device", "current_device_index", "get_device_properties"})
_METHODS = frozenset({"to", "cuda", "npu", "xpu", "pin_memory"})
"""Methods of a tensor that may be given the index of a device as a number."""


def accelerator_of(
    trace: DynamoTrace,
    graph: fx.GraphModule | None,
    builder: TreeBuilder,
    tree: Conditions,
    frame: Frame,
    shaping: Iterable[types.CodeType],
    owners: Owners,
) -> Accelerator | None:
    """The accelerator that a trace used, and what ties the trace to the accelerator's index, if so.

    None for a trace that touches no accelerator. `shaping` is user code that ran during the trace
    and was not traced by Dynamo. `owners` are the functions of code objects, by `id`.
    """
    kind = runtime.accelerator()
    if kind is None:
        return None
    read = [each for each in trace.observed if each.question is Question.DEVICE]
    touched = {*_devices_of(graph), *_devices_in(tree, frame)}
    touched = {name for name in touched if name.partition(":")[0] == kind}
    index = runtime.current_index(kind) if touched or read else None
    if index is None:
        return None
    others = touched - {kind, devices.name_of(kind, index)}
    looks = [each.argument for each in trace.observed if each.question is Question.INDEX]
    reasons = [*(f"it uses {name}" for name in sorted(others)), *looks]
    reasons += [
        *_unguarded_reasons(read, builder),
        *_in_conditions(tree, kind),
        *_in_graph(trace.graph),
        *_in_streams(graph),
        *_in_user_code(shaping, owners),
    ]
    return Accelerator(kind, index, reasons[0] if reasons else "")


def accelerator_of_piece(
    called: fx.GraphModule,
    graph: fx.GraphModule,
    tree: Conditions,
    shaping: Iterable[types.CodeType],
    owners: Owners,
) -> Accelerator | None:
    """As `accelerator_of`, for a graph that somebody else traced: `called`, lowered to `graph`."""
    kind = runtime.accelerator()
    default = tree.state.get("default_device")
    touched = {*_devices_of(called), *_devices_of(graph), *([str(default)] if default else [])}
    touched = {name for name in touched if name.partition(":")[0] == kind}
    index = runtime.current_index(kind) if kind is not None and touched else None
    if kind is None or index is None:
        return None
    reasons = [
        *(f"it uses {name}" for name in sorted(touched - {kind, devices.name_of(kind, index)})),
        *_in_graph(called),
        *_in_streams(graph),
        *_in_user_code(shaping, owners),
    ]
    return Accelerator(kind, index, reasons[0] if reasons else "")


def stored_form(tree: Conditions, device: Accelerator | None) -> Conditions:
    """The conditions in their stored form, in which a device without a tie is "the current one"."""
    if device is None or device.index is None or device.why:
        return tree.place_on_device(device, str)
    rename = devices.to_current(device.kind, device.index)
    return tree.place_on_device(replace(device, index=None), rename)


# --- what a trace touches


def _devices_of(graph: fx.GraphModule | None) -> Iterator[str]:
    for node in subgraphs.nodes_of(graph):
        value = node.meta.get("val")
        for part in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(part, torch.Tensor):
                yield str(part.device)
        yield from (str(arg) for arg in _arguments(node) if isinstance(arg, torch.device))


def _arguments(node: fx.Node) -> list[Any]:
    found: list[Any] = []
    fx.node.map_aggregate((node.args, node.kwargs), found.append)
    return found


def _devices_in(tree: Conditions, frame: Frame) -> set[str]:
    rows = [args for _, args in tree.checks.values()]
    default = tree.state.get("default_device")
    named = devices.names_in([rows, tree.args, tree.idents, frame.constants])
    return {*named, *(fact.device for fact in tree.tensors), *([default] if default else [])}


# --- what ties a trace to an index


def _unguarded_reasons(read: Iterable[Observation], builder: TreeBuilder) -> Iterator[str]:
    """A reason if a device was read from a place that has no guard of its own."""
    guarded = {c.node for c in builder.checks.values() if c.kind is Kind.EQUALS}
    sources = [each.owner for each in read if each.owner is not None]
    if any(builder.node(source) not in guarded for source in sources):
        yield "it reads a device that has no guard"


def _in_conditions(tree: Conditions, kind: str) -> Iterator[str]:
    """Reasons in the conditions: a device inside another value, or an answer with an index."""
    nested = [
        arg
        for check, (_, args) in tree.checks.items()
        for arg in args
        if check is not Kind.EQUALS or not devices.is_device(arg)
    ]
    named = devices.names_in([nested, tree.args, tree.idents])
    if any(name.partition(":")[0] == kind for name in named):
        yield "a device is part of a value that is guarded as a whole"
    for step, arg in zip(tree.steps, tree.args, strict=True):
        if step == Step.ANSWER and arg in _ASKS:
            yield f"it asks for {arg}"


def _in_graph(graph: fx.GraphModule | None) -> Iterator[str]:
    """Reasons in Dynamo's graph: an index that the code gives, as a text or as a number."""
    for node in subgraphs.nodes_of(graph):
        if any(isinstance(arg, str) and _INDEXED.fullmatch(arg) for arg in _arguments(node)):
            yield "the traced code names the index of a device"
        elif node.target in _METHODS or getattr(node.target, "__name__", "") in _METHODS:
            if any(map(_is_number, _arguments(node))):
                yield "the traced code gives the index of a device"
        elif _is_number(node.kwargs.get("device")):
            yield "the traced code gives the index of a device"
        elif node.op == "call_function" and _takes_index(node):
            yield f"{node.target} may be given the index of a device"


def _is_number(arg: object) -> bool:
    """Whether an argument is a number: an int, or a node whose value is no tensor."""
    if not isinstance(arg, fx.Node):
        return type(arg) is int
    return not isinstance(arg.meta.get("example_value"), torch.Tensor)


def _takes_index(node: fx.Node) -> bool:
    """Whether a call may take one of its arguments for the index of a device."""
    if "device" in getattr(node.target, "__name__", ""):
        return True
    if runtime.operator_name(node.target) is None:
        return False
    return any(map(_is_number, _arguments(node))) and _has_device(node.target)


def _has_device(target: Any) -> bool:
    """Whether any overload of an operator has an argument for a device; if unknown, it has one."""
    names = target.overloads() if hasattr(target, "overloads") else ()
    found = [schemas.schema_of(getattr(target, name)) for name in names]
    found = found or [schemas.schema_of(target)]
    return any(each is None or "Device" in str(each.arguments) for each in found)


def _in_user_code(codes: Iterable[types.CodeType], owners: Owners) -> Iterator[str]:
    """Reasons in code that shaped the graph and was not traced."""
    for code in codes:
        if not is_covered(code, owners.get(id(code), [])) and may_name_index(code, owners):
            yield f"{code.co_qualname} may name the index of a device"


def _in_streams(graph: fx.GraphModule | None) -> Iterator[str]:
    for node in subgraphs.nodes_of(graph):
        schema = schemas.schema_of(node.target) if node.op == "call_function" else None
        if schema is not None and schema.name.startswith(f"{STREAMS}::"):
            yield "it works on streams, which belong to a device"
            return


# --- may user code that shapes a graph without being traced depend on the index of a device?
#
# Such code is a fake implementation, a decomposition or a pass. We can't watch what it computes
# from an index. So we accept only code that can't get at an index: code that uses nothing but
# sizes, dtypes and factories, and passes on the device of its arguments. Any other code ties the
# entry to the index.


_GLOBALS = frozenset({"torch", "len", "list", "max", "min", "range", "tuple"})
_FACTORIES = frozenset({"empty", "full", "ones", "zeros", "empty_strided"})
_ATTRIBUTES = frozenset(
    {
        *_FACTORIES,
        *(f"new_{name}" for name in _FACTORIES),
        *("empty_like", "full_like", "ones_like", "zeros_like"),
        *("clone", "contiguous", "detach", "expand", "flatten", "permute", "reshape", "squeeze"),
        *("transpose", "unsqueeze", "view", "is_contiguous"),
        *("dim", "dtype", "ndim", "numel", "shape", "size", "stride"),
        *("bfloat16", "bool", "float16", "float32", "float64", "int8", "int32", "int64", "uint8"),
        *("half", "float", "double", "int", "long"),
    }
)
_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL"})
_OPENS = frozenset(
    {
        *("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"),
        *("IMPORT_NAME", "IMPORT_FROM", "BEFORE_WITH", "LOAD_SPECIAL"),
        "CALL_FUNCTION_EX",  # the bytecode does not show the names of the arguments
    }
)
_TEXTS = frozenset({"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "BUILD_STRING"})
_PUSHES = {
    **dict.fromkeys(("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_CONST", "LOAD_GLOBAL"), 1),
    "LOAD_SMALL_INT": 1,
    **dict.fromkeys(("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"), 2),
}
"""How many values an instruction puts on the stack."""


def may_name_index(code: types.CodeType, owners: Owners) -> bool:
    """Whether code may name the index of a device or look at one; True if we can't tell."""
    instructions = list(dis.get_instructions(code))
    if any(i.opname in _OPENS | _TEXTS for i in instructions) or _has_default_device(code, owners):
        return True
    if any(isinstance(each, str) and ":" in each for each in code.co_consts):
        return True
    if any(hasattr(each, "co_code") for each in code.co_consts):
        return True
    handed_on = 0
    for position, each in enumerate(instructions):
        if each.argval == "device" and each.opname in _READS:
            if not _is_handed_on(code, instructions, position):
                return True
            handed_on += 1
        elif not _is_harmless(each):
            return True
    return handed_on != sum(list(names).count("device") for names in _keywords(code))


def _is_harmless(instruction: dis.Instruction) -> bool:
    if instruction.opname == "LOAD_GLOBAL":
        return instruction.argval in _GLOBALS
    if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return instruction.argval in _ATTRIBUTES
    return not instruction.opname.endswith(("_NAME", "_ATTR"))


def _is_handed_on(code: types.CodeType, instructions: list[dis.Instruction], position: int) -> bool:
    """Whether `x.device` is passed as the argument `device`, in bytecode of Python 3.11 to 3.14.

    `position` is that of the instruction that reads `device`; the one before must load `x`.
    """
    if not instructions[position - 1].opname.startswith("LOAD_FAST"):
        return False
    above = 0
    for each, following in itertools.pairwise(instructions[position + 1 :]):
        names = None
        if each.opname == "KW_NAMES":  # before Python 3.13
            names = code.co_consts[each.arg or 0]
        elif following.opname == "CALL_KW":
            names = each.argval
        if names is not None:
            return above < len(names) and names[len(names) - 1 - above] == "device"
        if each.opname in _PUSHES:
            above += _PUSHES[each.opname]
        elif each.opname != "LOAD_ATTR":
            return False
    return False


def _keywords(code: types.CodeType) -> Iterator[tuple[object, ...]]:
    yield from (each for each in code.co_consts if isinstance(each, tuple))


def _has_default_device(code: types.CodeType, owners: Owners) -> bool:
    """Whether a default argument may be a tensor or another object of the user that has a device.

    True if the functions of the code are not known.
    """
    if "device" not in code.co_names:
        return False
    functions = owners.get(id(code), [])
    defaults = [
        value
        for function in functions
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    ]
    return not functions or any(hasattr(value, "device") for value in defaults)
