"""All hooks on Dynamo: what each of them watches, and what must be refused where it is missing.

Whoever raises `version.TESTED_TORCH` starts here, with that torch installed:

    python -m npugx_cache.trace.observe.hook_table

It prints one line for each target: there, gone, inherited, or other than what somebody has read. A
hook with `bodies` must be read again in torch's source where the target is another one, and its
wrapper be brought up to date; then the hash of the new body goes into its row.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.trace.observe import (
    attribute_writes,
    autocast_objects,
    builtin_answers,
    callables,
    classes,
    device_values,
    enumerations,
    identity,
    numpy_numbers,
    objects,
    observation,
    opaque,
    set_walks,
    sharded_sizes,
    torch_guards,
    unkept_calls,
    written_back,
    zeros,
)
from npugx_cache.trace.observe.body_hash import body_hash
from npugx_cache.trace.observe.hooks import EVERY_TRACE, Hook, Hooks, find, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PROXIES = (2, 12)
"""Since then Dynamo reads the `__dict__` of an object through what it knows of writes."""
_PROTOCOLS = (2, 13)
"""Before it Dynamo had no module that plays CPython's `object.c`, and nothing to watch there."""


_SLOTS = (2, 14)
"""Since then Dynamo names its functions as CPython's slots and reads attributes as CPython does:
some, such as an exception's `args`, from tables that are asked before `tp_getattro_impl`."""
_SIBLINGS = (2, 15)
"""Since then a frozenset is no kind of set, an in-place operator calls no method, ..."""


def _either(owner: str, *names: str) -> str:
    """One target of which versions of torch have other names."""
    return " | ".join(f"{owner}.{name}" for name in names)


def _each(
    targets: Iterable[str], make: Callable[[Any], Any], watches: str, **more: Any
) -> list[Hook]:
    return [Hook(target, make, watches, **more) for target in targets]


_DICTS = [
    Hook(
        "variables.dicts:ConstDictVariable.as_python_constant",
        torch_guards.guarding_whole,
        "dicts that are used as a whole",
    ),
    Hook(
        "variables.dicts:DunderDictVariable.install_dict_keys_match_guard",
        observation.before(torch_guards.guard_object_keys),
        "the names in the __dict__ of an object",
        since=_PROXIES,
    ),
    Hook(
        "variables.dicts:DunderDictVariable.install_dict_contains_guard",
        observation.before(torch_guards.guard_object_key),
        "whether a name is in the __dict__ of an object",
        since=_PROXIES,
    ),
    Hook(
        "variables.misc:GetAttrVariable.__init__",
        observation.noting(objects.refuse_object_dict),
        "the __dict__ of an object, which has no guard there",
        before=_PROXIES,
    ),
]

_KINDS_AND_EQUALITY = [
    Hook(
        "variables.builtin:BuiltinVariable.call_function_handler_cache",
        objects.empty,
        "calls of builtins that Dynamo has seen in a trace without these hooks",
        needed=EVERY_TRACE,
    ),
    Hook(
        "variables.user_defined:UserDefinedObjectVariable.is_python_equal"
        " | variables.hashable:HashableTracker.__eq__",
        observation.noting(objects.note_equality),
        "objects with an __eq__ of their own that are keys or elements",
        needed="UserDefinedObjectVariable",
    ),
    Hook(
        "variables.user_defined:FrozenDataClassVariable.hash_impl"
        " | variables.user_defined:FrozenDataClassVariable.get_python_hash",
        observation.noting(classes.note_frozen),
        "frozen dataclasses that are keys or elements",
    ),
    Hook(
        "variables.user_defined:FrozenDataClassVariable.is_python_equal",
        observation.noting(classes.note_frozen),
        "frozen dataclasses that are keys or elements",
        before=_SLOTS,
    ),
    Hook(
        "variables.functions:invoke_and_store_as_constant",
        objects.noting_constant,
        "functions that are assumed to give a constant",
        everywhere=True,
    ),
]

_SIZES = [
    Hook(
        "variables.builder:_automatic_dynamic",
        sharded_sizes.fixing,
        "sizes of sharded tensors that differ from those of an earlier trace",
        bodies=("06e11b2ba84aa480", "3e81ba1e615eb6c5", "27a44ba6a86d891c"),
    ),
]

_IDENTITY = [
    Hook(
        "guards:make_dupe_guard",
        identity.guarding_duplicates,
        "arguments that are the object of a global",
        everywhere=True,
    ),
    Hook(
        "variables.object_protocol:vt_identity_compare",
        identity.noting_comparison,
        "objects that are compared by identity",
        since=_PROXIES,
    ),
    Hook(
        "utils:iter_contains",
        identity.noting_search,
        "functions that are looked for in a list or a tuple",
        everywhere=True,
    ),
    Hook(
        "variables.hashable:HashableTracker.__init__"
        " | variables.dicts:ConstDictVariable._HashableTracker.__init__",
        observation.noting(identity.note_key),
        "objects that are keys or elements by identity",
        needed="UserDefinedObjectVariable",
    ),
    Hook(
        "side_effects:SideEffects.codegen_update_mutated",
        observation.noting(identity.note_written),
        "objects that the code writes to",
    ),
]

_GRAPHS = [
    Hook(
        "symbolic_convert:InliningInstructionTranslator.get_globals_source_and_value",
        callables.reaching_globals,
        "the globals of generated code",
        bodies=("129d610ca20c9836", "12b449520c15044a"),
    ),
    Hook(
        "trace_rules:is_callable_allowed",
        observation.where(True, opaque.is_opaque),
        "functions and classes marked allow_in_graph",
        bodies=("e9fbbd04059bfe72", "7392a81286e70524"),
    ),
    Hook(
        "variables.torch:TorchInGraphFunctionVariable._call_nonstrict_traceable_function",
        opaque.looking_into_nonstrict,
        "functions marked nonstrict_trace",
        bodies=("247493fa1ebc7fd1", "93e51e5e98825902"),
    ),
    Hook(
        "output_graph:SubgraphTracer.create_node",
        unkept_calls.checking,
        "calls that a lowered graph would lose",
    ),
    Hook(
        "side_effects:SideEffects.store_attr",
        observation.noting(unkept_calls.refuse_store),
        "switches of torch's that the code sets",
    ),
    Hook(
        "output_graph:is_noop_graph",
        observation.where(True, lambda _: False),
        "graphs without a call, in whose place Dynamo puts a function of its own",
        bodies=("0e2b328f63284f24",),
        since=_SIBLINGS,
    ),
    Hook(
        "variables.dicts:SideEffectsProxyDict.__init__",
        attribute_writes.following,
        "writes to attributes after a graph inside the graph",
        since=_PROXIES,
        before=_SIBLINGS,
    ),
    Hook(
        "variables.ctx_manager:AutocastModeVariable.enter",
        autocast_objects.entering,
        "autocast objects that existed before the call",
    ),
    Hook(
        "variables.ctx_manager:AutocastModeVariable.exit",
        autocast_objects.leaving,
        "autocast objects that existed before the call",
    ),
]

_WRITTEN_BACK = [
    Hook(
        "side_effects:SideEffects.codegen_update_mutated",
        observation.noting(written_back.refuse_lost),
        "objects that the code changes",
    ),
    Hook(
        "side_effects:SideEffects.store_attr",
        observation.noting(written_back.guard_deleted),
        "attributes that the code deletes",
    ),
    Hook(
        "codegen:PyCodegen.__call__",
        observation.noting(written_back.refuse_other_object),
        "iterators and contexts that leave the code",
    ),
    Hook(
        "variables.builder:VariableBuilder._wrap",
        observation.noting(written_back.refuse_random),
        "the state of a generator of random numbers",
    ),
]

_EXCEPTION_UNTIL_2_14 = "variables.misc:ExceptionVariable"
_EXCEPTION = "variables.exception:ExceptionVariable"
_BUILTINS = [
    Hook(
        "exc:raise_observed_exception",
        builtin_answers.noting_what_is_raised,
        "exceptions that Dynamo raises in the place of builtins",
        everywhere=True,
    ),
    Hook(
        f"{_EXCEPTION_UNTIL_2_14}.var_getattr"
        f" | {_EXCEPTION_UNTIL_2_14}.lookup_tp_getset_member"
        f" | {_EXCEPTION}.lookup_tp_getset_member",
        observation.noting(builtin_answers.note_arguments),
        "what an exception of a builtin says",
        inherits=True,
    ),
    *(
        Hook(
            target,
            observation.noting(builtin_answers.note_own_text),
            "the text of an exception",
            inherits=True,
            since=_SLOTS,
        )
        for target in (
            f"{_EXCEPTION_UNTIL_2_14}.tp_str_impl | {_EXCEPTION}.tp_str_impl",
            "variables.user_defined:UserDefinedExceptionObjectVariable.tp_str_impl",
        )
    ),
    Hook(
        "variables.functions:PolyfilledFunctionVariable.call_function",
        observation.noting(builtin_answers.refuse_sum),
        "sum() of a list or tuple of user code, which Dynamo adds up without asking its class",
        since=_SIBLINGS,
    ),
    Hook(
        "variables.builtin:DictBuiltinVariable.call_custom_dict_fromkeys",
        observation.noting(builtin_answers.refuse_keys),
        "dict.fromkeys() of a dict of user code, whose class Dynamo does not ask",
        since=_SIBLINGS,
    ),
    Hook(
        "variables.tensor:TensorVariable.__init__",
        observation.noting(builtin_answers.refuse_number),
        "numbers of NumPy's",
        needed="NumpyNdarrayVariable",
    ),
    Hook(
        "variables.constant:ConstantVariable.is_base_literal",
        observation.where(False, numpy_numbers.is_constant),
        "numbers of NumPy's that are constants",
        bodies=("69d6f9ba71918f7f",),
    ),
    Hook(
        "variables.constant:ConstantVariable.__init__",
        numpy_numbers.keep_number,
        "the type of a number of NumPy's that is a constant",
        needed=EVERY_TRACE,
    ),
    Hook(
        "variables.builder:VariableBuilder.wrap_symfloat",
        zeros.make_zero_constant,
        "the sign of a float that is zero",
        needed=EVERY_TRACE,
    ),
]

_CALLABLES = [
    Hook(
        "variables.functions:fn_var_getattr | variables.functions:fn_getattro_impl",
        callables.reading_text,
        "the qualified name of a function",
        before=_SIBLINGS,
        needed="UserFunctionVariable",
    ),
    Hook(
        "variables.builder:VariableBuilder._wrap",
        observation.noting(callables.refuse_derived),
        "classes derived from functools.partial",
    ),
]

_LOOKUPS = [
    Hook(
        "variables.constant:EnumVariable.as_proxy"
        " | variables.user_defined:UserDefinedObjectVariable.as_proxy",
        observation.noting(enumerations.refuse_as_number),
        "members of enumerations that are taken for numbers",
    ),
    Hook(
        "side_effects:SideEffects.store_attr",
        observation.noting(classes.note_stored),
        "attributes that the code sets",
    ),
]

_SETS = [
    *_each(
        (
            _either(f"variables.sets:{kind}", "repr_impl", "tp_repr_impl")
            for kind in ("SetVariable", "FrozensetVariable")
        ),
        set_walks.noting(set_walks.showing),
        "the order of a set in a text",
        since=_PROTOCOLS,
    ),
    *_each(
        (
            f"variables.sets:{kind}.as_python_constant | variables.dicts:{kind}.as_python_constant"
            for kind in ("SetVariable", "FrozensetVariable")
        ),
        set_walks.noting(set_walks.as_constant),
        "sets that are given to functions of Python's own",
    ),
    Hook(
        "variables.sets:BaseSetVariable.is_python_constant"
        " | variables.sets:SetVariable.is_python_constant",
        set_walks.noting(set_walks.pausing),
        "a question that walks a set in no order that matters",
        bodies=("225f9163baeeab26", "d5d7545a458929ec"),
    ),
    Hook(
        "variables.misc:StringFormatVariable.reconstruct",
        observation.noting(builtin_answers.refuse_late_text),
        "texts of objects that the traced code may change afterwards",
    ),
]

ROWS = (
    *(*_DICTS, *_KINDS_AND_EQUALITY, *_IDENTITY, *_SIZES, *_GRAPHS, *_WRITTEN_BACK, *_BUILTINS),
    *(*_CALLABLES, *_LOOKUPS, *_SETS),
)
DEVICE_ROWS = (
    Hook(
        "variables.constant:ConstantVariable.value",
        device_values.noting_value,
        "devices among the constants of a trace",
        adds=True,
    ),
    Hook(
        "variables.tensor:TensorVariable.method_get_device",
        device_values.noting_index,
        "get_device()",
        bodies=("e55fd1d815d79c20", "49a53aabc213da1c", "24cefcf6e88379b5", "ca5b20eaf4fb9d7a"),
        before=_SLOTS,
    ),
    Hook(
        "variables.tensor:TensorVariable.call_method",
        device_values.noting_index_by_name,
        "get_device()",
        bodies=("65c297caff11d1b5",),
        since=_SLOTS,
    ),
    Hook(
        "source:CurrentStreamSource.reconstruct",
        device_values.of_any_device,
        "the device of the current stream",
        bodies=("80c61e7e3d465abf",),
    ),
)

ON_DYNAMO = Hooks(ROWS, objects.refuse_unwatched)
"""The hooks that are in place in every trace of ours."""
ON_DEVICES = Hooks(DEVICE_ROWS, objects.refuse_unwatched)
"""Those only where there is an accelerator: a constant is read often.

Where one is missing nothing is refused: every trace with a device then means its index.
"""


def main() -> None:
    rows = {found.target: found for found in map(find, (*ROWS, *DEVICE_ROWS)) if found}
    lines = [f"torch {torch.__version__}"]
    for target, found in sorted(rows.items()):
        body = f"{body_hash(value_of(target))}  " if found.hook.bodies else ""
        lines.append(f"{found.state.value:10}{target}  {body}({found.hook.watches})")
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
