"""All hooks on Dynamo: what each of them watches, and what must be refused where it is missing.

Whoever raises `runtime.TESTED_TORCH` starts here, with that torch installed:

    python -m npugx_cache.trace.observe.hook_table             what changed since the newest table
    python -m npugx_cache.trace.observe.hook_table --write     writes the table for this torch

The first prints one line per target: same, changed, new or gone. Each changed one must be read in
torch's source, and its wrapper here brought up to date; then the table is written and checked in.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.private import runtime
from npugx_cache.trace.observe import (
    builtin_answers,
    callables,
    classes,
    device_values,
    hook_hashes,
    objects,
    reversed_walks,
    set_walks,
    unkept_calls,
)
from npugx_cache.trace.observe.hooks import (
    Hook,
    Hooks,
    Needed,
    compared,
    is_there,
    overriding,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PROTOCOLS = (2, 13)
"""Before it Dynamo had no module that plays CPython's `object.c`, and nothing to watch there."""


def _each(targets: Iterable[str], make: Callable[[Any], Any], watches: str) -> list[Hook]:
    return [Hook(target, make, watches) for target in targets]


def _only_allows(targets: Iterable[str], make: Callable[[Any], Any], watches: str) -> list[Hook]:
    return [Hook(target, make, watches, needed=Needed.ONLY_ALLOWS) for target in targets]


_DICTS = [
    Hook(
        "variables.dicts:ConstDictVariable.getitem_const_raise_exception_if_absent",
        objects.before(objects.guard_absent_key),
        "keys that are not there, where the code catches the KeyError",
    ),
    Hook(
        "variables.dicts:ConstDictVariable.as_python_constant",
        objects.guarding_whole,
        "dicts that are used as a whole",
    ),
    Hook(
        "variables.lists:ListVariable.call_method",
        objects.before(objects.guard_extending_dict),
        "lists that are extended by a dict",
    ),
    Hook(
        "variables.dicts:DunderDictVariable.install_dict_keys_match_guard",
        objects.before(objects.guard_object_keys),
        "the names in the __dict__ of an object",
        since=_PROTOCOLS,
    ),
    Hook(
        "variables.dicts:DunderDictVariable.install_dict_contains_guard",
        objects.before(objects.guard_object_key),
        "whether a name is in the __dict__ of an object",
        since=_PROTOCOLS,
    ),
    Hook(
        "variables.dicts:DunderDictVariable.call_method",
        objects.before(objects.guard_copied_object_keys),
        "copies of the __dict__ of an object",
        since=_PROTOCOLS,
    ),
    Hook(
        "variables.misc:GetAttrVariable.__init__",
        objects.noting(objects.refuse_object_dict),
        "the __dict__ of an object, which has no guard there",
        before=_PROTOCOLS,
    ),
    Hook(
        "variables.builder:VariableBuilder._wrap",
        objects.before(objects.note_ordered),
        "the order of an OrderedDict",
    ),
]

_KINDS_AND_EQUALITY = [
    Hook(
        "variables.builtin:BuiltinVariable.call_function_handler_cache",
        objects.empty,
        "calls of builtins that Dynamo has seen in a trace without these hooks",
        needed=Needed.EVERY_TRACE,
    ),
    Hook(
        "variables.builtin:BuiltinVariable.call_isinstance",
        objects.before(objects.note_isinstance),
        "isinstance",
    ),
    Hook(
        "variables.builtin:BuiltinVariable.call_issubclass",
        objects.before(objects.note_issubclass),
        "issubclass",
    ),
    Hook(
        "variables.builtin:BuiltinVariable.call_callable",
        objects.before(objects.note_callable),
        "callable",
    ),
    Hook(
        "variables.user_defined:UserDefinedObjectVariable.is_python_equal",
        objects.before(objects.note_equality),
        "objects with an __eq__ of their own that are keys or elements",
    ),
    *_each(
        (
            f"variables.user_defined:FrozenDataClassVariable.{name}"
            for name in ("hash_impl", "is_python_equal")
        ),
        objects.noting(classes.note_frozen),
        "frozen dataclasses that are keys or elements",
    ),
    Hook(
        "variables.tensor:TensorVariable.var_getattr",
        objects.before(objects.note_tensor_attribute),
        "whether a tensor is a view of another",
    ),
    *_each(
        (
            "variables.functions:invoke_and_store_as_constant",
            "variables.nn_module:invoke_and_store_as_constant",
        ),
        objects.before(objects.note_folded),
        "functions that are assumed to give a constant",
    ),
]

_GRAPHS = [
    Hook(
        "output_graph:SubgraphTracer.create_node",
        unkept_calls.checking,
        "calls that a lowered graph would lose",
    ),
    Hook(
        "side_effects:SideEffects.store_attr",
        objects.noting(unkept_calls.refuse_store),
        "switches of torch's that the code sets",
    ),
]

_BUILTINS = [
    Hook(
        "exc:raise_observed_exception",
        builtin_answers.noting_what_is_raised,
        "exceptions that Dynamo raises in the place of builtins",
        everywhere=True,
    ),
    Hook(
        "variables.misc:ExceptionVariable.var_getattr",
        objects.noting(builtin_answers.note_arguments),
        "what an exception of a builtin says",
    ),
    Hook(
        "variables.builtin:BuiltinVariable.call_str",
        objects.noting(builtin_answers.note_text),
        "the text of an exception",
    ),
    Hook(
        "variables.lists:RangeVariable.sq_contains",
        builtin_answers.answering_with_bool,
        "`in` of a range, which Dynamo answers with a number",
        since=_PROTOCOLS,
    ),
    Hook(
        "variables.lists:RangeVariable.call_method",
        builtin_answers.answering_with_bool,
        "`in` of a range, which Dynamo answers with a number",
    ),
]

_FUNCTIONS = (
    "variables.misc:PythonModuleVariable",
    "variables.functions:BaseUserFunctionVariable",
    "variables.functions:UserFunctionVariable",
    "variables.functions:SkipFunctionVariable",
)
_OBJECTS = (
    "variables.user_defined:UserDefinedObjectVariable",
    "variables.user_defined:UserDefinedClassVariable",
)
_CALLABLES = [
    *_each(
        (f"{owner}.call_obj_hasattr" for owner in _FUNCTIONS),
        objects.noting(callables.guard_hasattr),
        "hasattr of modules and functions",
    ),
    *_each(
        (f"{owner}.var_getattr" for owner in (*_FUNCTIONS, *_OBJECTS)),
        callables.guarding_absence,
        "attributes that are not there, where the code catches the AttributeError",
    ),
    *_each(
        (
            f"variables.functions:FunctoolsPartialVariable.{name}"
            for name in ("call_obj_hasattr", "var_getattr")
        ),
        objects.noting(callables.refuse_attribute),
        "attributes of a functools.partial",
    ),
    *_each(
        (
            f"variables.functions:WrapperUserFunctionVariable.{name}"
            for name in ("call_obj_hasattr", "var_getattr")
        ),
        objects.noting(callables.refuse_wrappers),
        "attributes of what wraps a function",
    ),
    Hook(
        "variables.builder:VariableBuilder._wrap",
        objects.noting(callables.refuse_derived),
        "classes derived from functools.partial",
    ),
    *_each(
        (f"variables.{module}:SkipGuardSource" for module in ("functions", "builder")),
        callables.unskipping,
        "annotations and signatures, whose guards Dynamo leaves out",
    ),
]

_LOOKUPS = [
    Hook(
        "variables.object_protocol:_get_cached_slots",
        classes.uncached,
        "special methods that a class has got since Dynamo saw it first",
        everywhere=True,
        since=_PROTOCOLS,
    ),
    *_each(
        (f"{owner}.__init__" for owner in _OBJECTS),
        objects.noting(classes.note_class),
        "classes of user code",
    ),
    *_each(
        (
            f"variables.user_defined:UserDefinedVariable+.{name}"
            for name in ("call_method", "call_obj_hasattr", "var_getattr")
        ),
        objects.noting(classes.note_name),
        "names that are looked up in classes of user code",
    ),
    Hook(
        "variables.user_defined:UserDefinedClassVariable+.call_function",
        objects.noting(classes.refuse_to_make),
        "objects of user code that Dynamo makes",
    ),
    *_each(
        (
            f"variables.misc:SuperVariable.{name}"
            for name in ("call_method", "call_obj_hasattr", "var_getattr")
        ),
        objects.noting(classes.note_inherited),
        "names that super() looks up",
    ),
    Hook(
        "side_effects:SideEffects.store_attr",
        objects.noting(classes.note_stored),
        "attributes that the code sets",
    ),
]

_REVERSED = [
    *_each(
        (
            "variables.lists:BaseListVariable.call_method",
            "variables.dicts:DictViewVariable.call_method",
        ),
        reversed_walks.remembering,
        "lists and dicts that are walked backwards",
    ),
    Hook(
        "variables.lists:ListIteratorVariable.tp_iternext_impl",
        reversed_walks.comparing,
        "lists and dicts that change while they are walked backwards",
        since=_PROTOCOLS,
    ),
    Hook(
        "variables.builtin:BuiltinVariable.call_reversed",
        objects.noting(reversed_walks.refuse),
        "lists and dicts that change while they are walked backwards",
        before=_PROTOCOLS,
    ),
    *_each(
        (
            f"variables.lists:ListIteratorVariable.{name}"
            for name in ("next_variable", "unpack_var_sequence")
        ),
        reversed_walks.comparing,
        "lists and dicts that change while they are walked backwards",
    ),
]

_SET, _FROZENSET = "variables.sets:SetVariable", "variables.sets:FrozensetVariable"
_WALKED = "the order in which a set is walked"
_MADE = "how a set came about, which its order follows from"
_OPERATORS = {
    "nb_or_impl": set_walks.operating("__or__"),
    "nb_and_impl": set_walks.operating("__and__"),
    "nb_xor_impl": set_walks.operating("__xor__"),
    "nb_subtract_impl": set_walks.operating("__sub__"),
    "nb_inplace_or_impl": set_walks.changing("__ior__"),
    "nb_inplace_subtract_impl": set_walks.changing("__isub__"),
}
_WATCHED_SETS = [
    *_each((f"{_SET}.__init__",), set_walks.noting(set_walks.made), _MADE),
    *_each((f"{_SET}.clone",), set_walks.noting(set_walks.cloned), _MADE),
    *_each((f"{_SET}.unpack_var_sequence",), set_walks.noting(set_walks.walking), _WALKED),
    *_each((f"{_SET}.tp_iter_impl",), set_walks.noting(set_walks.iterating), _WALKED),
    *(Hook(f"{_SET}.{name}", set_walks.noting(hook), _MADE) for name, hook in _OPERATORS.items()),
    *_each(
        (f"{owner}.call_method" for owner in (_SET, _FROZENSET)),
        set_walks.noting(set_walks.calling),
        _MADE,
    ),
    *_each(
        (f"{owner}.repr_impl" for owner in (_SET, _FROZENSET)),
        set_walks.noting(set_walks.walking),
        _WALKED,
    ),
    *_each(
        (f"{owner}.as_python_constant" for owner in (_SET, _FROZENSET)),
        set_walks.noting(set_walks.as_constant),
        _WALKED,
    ),
    Hook(
        "variables.sets:set_copy", set_walks.noting(set_walks.copied), _MADE, needed="SetVariable"
    ),
    Hook(
        "variables.lists:CommonListMethodsVariable.call_method",
        set_walks.noting(set_walks.extending),
        "lists that are extended by a set",
        needed="SetVariable",
    ),
    Hook(
        "variables.builtin:BuiltinVariable.call_frozenset",
        set_walks.noting(set_walks.frozen),
        _MADE,
    ),
    Hook(
        "variables.constant:ConstantVariable.create",
        set_walks.noting(set_walks.wrapped),
        "sets that were there before the trace",
    ),
    Hook(
        "symbolic_convert:InstructionTranslatorBase._load_const",
        set_walks.noting(set_walks.constant),
        "sets among the constants of code",
    ),
    Hook(
        "variables.builder:SourcelessBuilder._type_handlers[set]",
        set_walks.forgetting,
        "sets that Python code of Dynamo's gave",
    ),
    # What looks at all elements in no order of its own: a walk there would be one condition more.
    *_only_allows(
        (
            *(
                f"{_SET}.{name}"
                for name in (
                    *("is_python_constant", "_fast_set_method", "is_python_equal"),
                    *("hash_impl", "get_real_python_backed_value"),
                )
            ),
            *(f"{_FROZENSET}.{name}" for name in ("hash_impl", "is_python_equal")),
            "codegen:PyCodegen.__call__",
            *(
                f"{module}:generic_bool"
                for module in (
                    "symbolic_convert",
                    "variables.builtin",
                    "variables.object_protocol",
                )
            ),
        ),
        set_walks.noting(set_walks.pausing),
        "walks over a set in which the order does not matter",
    ),
    *_only_allows(
        (f"variables.builtin:BuiltinVariable.call_{name}" for name in ("sorted", "min", "max")),
        set_walks.noting(set_walks.unless_key),
        "walks over a set in which the order does not matter",
    ),
]

_SETS = [
    *(replace(row, since=_PROTOCOLS) for row in _WATCHED_SETS),
    *(
        Hook(
            f"variables.{target}",
            objects.noting(set_walks.refuse_walk),
            _WALKED,
            before=_PROTOCOLS,
        )
        for target in (
            "dicts:SetVariable.unpack_var_sequence",
            "dicts:SetVariable.as_python_constant",
            "dicts:FrozensetVariable.as_python_constant",
            "constant:ConstantVariable.unpack_var_sequence",
        )
    ),
    Hook(
        "variables.dicts:SetVariable.call_method",
        objects.noting(set_walks.refuse_pop),
        _WALKED,
        before=_PROTOCOLS,
    ),
]
"""Before those protocols Dynamo kept sets elsewhere; a walk over several elements is refused."""

ROWS = (
    *(*_DICTS, *_KINDS_AND_EQUALITY, *_GRAPHS, *_BUILTINS),
    *(*_CALLABLES, *_LOOKUPS, *_REVERSED, *_SETS),
)
DEVICE_ROWS = (
    Hook(
        "variables.constant:ConstantVariable.value",
        device_values.noting_value,
        "devices among the constants of a trace",
        needed=Needed.ONLY_ALLOWS,
        adds=True,
    ),
    Hook(
        "variables.tensor:TensorVariable.method_get_device",
        device_values.noting_index,
        "get_device()",
        needed=Needed.ONLY_ALLOWS,
    ),
    Hook(
        "source:CurrentStreamSource.reconstruct",
        device_values.of_any_device,
        "the device of the current stream",
        needed=Needed.ONLY_ALLOWS,
    ),
)

ON_DYNAMO = Hooks(ROWS, objects.refuse_unwatched)
"""The hooks that are in place in every trace of ours."""
ON_DEVICES = Hooks(DEVICE_ROWS, objects.refuse_unwatched)
"""Those only where there is an accelerator: a constant is read often.

Where one is missing nothing is refused: every trace with a device then means its index.
"""


def main(arguments: list[str]) -> int:
    tables = hook_hashes.tables()
    version = runtime.torch_version()
    here = tables.get(version) or tables[max(tables)]
    rows = [(row, found) for row in (*ROWS, *DEVICE_ROWS) for found in _compared(row, here)]
    if arguments == ["--write"]:
        there = [f.target for _, f in rows if is_there(value_of(f.target))]
        values = {target: (value_of(target), overriding(target)) for target in there}
        derived = [f.target for row, f in rows if row.target != f.target]
        path = here.with_name("hooks_{}_{}.txt".format(*version))
        head = f"# What hooks stand for in torch {torch.__version__}: see hook_table.py\n"
        path.write_text(head + hook_hashes.written(values, derived), encoding="utf-8")
        return 0
    lines = {f"{found.state.value:10}{found.target}  ({row.watches})" for row, found in rows}
    counts = [found.state.value for found in {f.target: f for _, f in rows}.values()]
    total = ", ".join(f"{counts.count(each)} {each}" for each in sorted(set(counts)))
    here_now = f"torch {torch.__version__} beside {here.name}"
    sys.stdout.write("\n".join([here_now, *sorted(lines), total, ""]))
    return 0


def _compared(row: Hook, path: Any) -> Iterable[Any]:
    return compared(row, hook_hashes.read(path))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
