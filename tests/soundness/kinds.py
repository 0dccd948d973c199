"""A decision for each guard kind and each source class of torch's: what the cache does about it.

PORTABLE: its condition is stored and checked. STATE: it is about global torch state, all of which
is compared at every check. REFUSED: a trace with it is not stored; it runs in this process alone.
TRANSPARENT: a source that is where its base is. NEVER: no guard of a captured graph is about it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from npugx_cache import version

PORTABLE, STATE, REFUSED = "portable", "state", "refused"
TRANSPARENT, NEVER = "transparent", "never"


class Decision(NamedTuple):
    what: str
    why: str = ""
    not_in_a_row: str = ""
    """Why no row of the matrix meets it, where none does."""
    since: tuple[int, int] = (0, 0)
    """The first torch that has it."""
    before: tuple[int, int] = (99, 0)
    """The first torch that has it no more."""


_GROUPS = "tests/restart/test_collectives.py"
_MESHES = "tests/restart/test_tensor_parallel.py"
GUARDS = {
    "TYPE_MATCH": Decision(PORTABLE, "the class by module and name"),
    "CONSTANT_MATCH": Decision(PORTABLE, "type and value"),
    "EQUALS_MATCH": Decision(PORTABLE, "type and value"),
    "BOOL_MATCH": Decision(PORTABLE, "the value", "CONSTANT_MATCH calls it"),
    "NONE_MATCH": Decision(PORTABLE, "the value", "CONSTANT_MATCH calls it"),
    "NOT_NONE_MATCH": Decision(PORTABLE, "is not None", "gradients of optimisers only"),
    "ID_MATCH": Decision(PORTABLE, "what the object is in any process: name and code, or refused"),
    "FUNCTION_MATCH": Decision(
        PORTABLE, "module, name and code", "no program is known that makes one"
    ),
    "CLOSURE_MATCH": Decision(PORTABLE, "module, name and code"),
    "CLASS_MATCH": Decision(PORTABLE, "module and name"),
    "MODULE_MATCH": Decision(PORTABLE, "its name in sys.modules"),
    "BUILTIN_MATCH": Decision(PORTABLE, "module and name"),
    "HASATTR": Decision(PORTABLE, "name and whether it is there"),
    "NOT_PRESENT_IN_GENERIC_DICT": Decision(PORTABLE, "name; in which class it is found as well"),
    "DICT_CONTAINS": Decision(PORTABLE, "the key"),
    "DICT_NOT_CONTAINS": Decision(PORTABLE, "the key", since=(2, 12)),
    "SET_CONTAINS": Decision(PORTABLE, "the member"),
    "SET_NOT_CONTAINS": Decision(PORTABLE, "the member", since=(2, 12)),
    "DICT_KEYS_MATCH": Decision(PORTABLE, "the keys; their order where it was used"),
    "MAPPING_KEYS_CHECK": Decision(PORTABLE, "the keys in order"),
    "SEQUENCE_LENGTH": Decision(PORTABLE, "type and length"),
    "FAKE_SCRIPT_TYPE_MATCH": Decision(
        PORTABLE,
        "a process group by name and ranks, a mesh by its groups; others are refused",
        _GROUPS,
        since=(2, 13),
    ),
    "OPAQUE_OBJ_GUARD_FN_MATCH": Decision(
        PORTABLE, "the same; no function of the user's is asked", _GROUPS, since=(2, 11)
    ),
    "EMPTY_NN_MODULE_HOOKS_DICT": Decision(PORTABLE, "the number of hooks, which torch skips"),
    "TUPLE_ITERATOR_LEN": Decision(PORTABLE, "what is left"),
    "RANGE_ITERATOR_MATCH": Decision(PORTABLE, "what is left"),
    "COUNT_ITERATOR_MATCH": Decision(PORTABLE, "the state", since=(2, 12)),
    "DUPLICATE_INPUT": Decision(PORTABLE, "two paths, one object"),
    "WEAKREF_ALIVE": Decision(PORTABLE, "the referent is there", "optimisers only"),
    "TENSOR_MATCH": Decision(PORTABLE, "type, dtype, device, layout, grad, dispatch keys, marks"),
    "GRAD_MODE": Decision(STATE, "runs are under no_grad, cold and warm"),
    "DETERMINISTIC_ALGORITHMS": Decision(STATE),
    "FSDP_TRAINING_STATE": Decision(STATE, "training only; grad is off"),
    "GLOBAL_STATE": Decision(STATE, "all but the number of threads"),
    "TORCH_FUNCTION_STATE": Decision(STATE, "modes other than the default device are refused"),
    "DEFAULT_DEVICE": Decision(STATE),
    "AUTOGRAD_SAVED_TENSORS_HOOKS": Decision(STATE, "active hooks are refused"),
    "DUAL_LEVEL": Decision(STATE, "an active level is refused"),
    "FUNCTORCH_STACK_MATCH": Decision(STATE, "an active transform is refused"),
    "SHAPE_ENV": Decision(STATE, "its conditions are stored as expressions over sizes"),
    "CONSTANT_SUBCLASS_MATCH": Decision(
        PORTABLE,
        "the text of a version of torch's; a class of the user's is refused",
        since=(2, 12),
    ),
    "DICT_VERSION": Decision(REFUSED, "a counter of one process"),
    "NN_MODULE": Decision(REFUSED, "a module by identity; modules are guarded by content"),
    "DISPATCH_KEY_SET_MATCH": Decision(REFUSED, "a key set passed as an argument"),
    "TENSOR_SUBCLASS_METADATA_MATCH": Decision(
        PORTABLE, "all attributes, and all that the code of the class may read"
    ),
    "DTENSOR_SPEC_MATCH": Decision(
        PORTABLE, "placements, global sizes and the mesh with its groups", _MESHES
    ),
    "COW_TENSOR_MATCH": Decision(REFUSED, "whether memory is copied on a write", since=(2, 14)),
    "CURRENT_STREAM_MATCH": Decision(REFUSED, "which stream is current", since=(2, 15)),
    "LIST_REVERSEITERATOR_LEN": Decision(REFUSED, "what a reversed() walks", since=(2, 15)),
}
"""By the name of the method of `torch._dynamo.guards.GuardBuilder`."""

SOURCES = {
    "LocalSource": Decision(PORTABLE, "an argument or a free variable"),
    "GlobalSource": Decision(PORTABLE, "a global, or what a name made up by Dynamo stands for"),
    "ImportSource": Decision(
        PORTABLE, "a module", "only frames that reload a module make one", since=(2, 11)
    ),
    "TorchSource": Decision(PORTABLE, "the module torch", before=(2, 11)),
    "CollectionsSource": Decision(REFUSED, "the module collections", before=(2, 11)),
    "AttrSource": Decision(PORTABLE),
    "GenericAttrSource": Decision(
        PORTABLE, "past __getattr__", "no program is known that makes one"
    ),
    "ParamBufferSource": Decision(PORTABLE, "an attribute", "only without inlined modules"),
    "UnspecializedParamBufferSource": Decision(PORTABLE, "an attribute"),
    "GradSource": Decision(PORTABLE, "an attribute", "optimisers only"),
    "CellContentsSource": Decision(PORTABLE, "an attribute", since=(2, 11)),
    "GetItemSource": Decision(PORTABLE),
    "ListGetItemSource": Decision(PORTABLE),
    "DictGetItemSource": Decision(PORTABLE),
    "DictSubclassGetItemSource": Decision(PORTABLE),
    "ConstDictKeySource": Decision(PORTABLE, "the key at a place"),
    "DefaultsSource": Decision(PORTABLE),
    "ClosureSource": Decision(PORTABLE),
    "CodeSource": Decision(
        PORTABLE, "the code of a function", "no program is known that makes one"
    ),
    "TypeSource": Decision(PORTABLE),
    "TypeDictSource": Decision(PORTABLE),
    "TypeMROSource": Decision(PORTABLE),
    "TupleIteratorGetItemSource": Decision(PORTABLE),
    "NamedTupleFieldsSource": Decision(PORTABLE, "_fields", "no program is known that makes one"),
    "WeakRefCallSource": Decision(PORTABLE),
    "CallFunctionNoArgsSource": Decision(PORTABLE, "__subclasses__() alone; others run user code"),
    "TensorPropertySource": Decision(PORTABLE, "size, stride, offset of a tensor"),
    "CallMethodItemSource": Decision(PORTABLE, "the number in a tensor of one element"),
    "NNModuleSource": Decision(TRANSPARENT),
    "UnspecializedNNModuleSource": Decision(TRANSPARENT),
    "UnspecializedBuiltinNNModuleSource": Decision(TRANSPARENT),
    "FSDPNNModuleSource": Decision(TRANSPARENT),
    "OptimizerSource": Decision(TRANSPARENT),
    "SkipGuardSource": Decision(TRANSPARENT),
    "GlobalStateSource": Decision(STATE),
    "ShapeEnvSource": Decision(STATE),
    "TorchFunctionModeStackSource": Decision(
        STATE, "a default device is compared; other torch-function modes are refused"
    ),
    "NumpyTensorSource": Decision(REFUSED, "an array's memory is shared with a tensor"),
    "NonSerializableSetGetItemSource": Decision(REFUSED, "a place in a set is none elsewhere"),
    "GlobalWeakRefSource": Decision(REFUSED, "optimisers only"),
    "FloatTensorSource": Decision(REFUSED, "a float that became a tensor; specialised instead"),
    "ConvertIntSource": Decision(REFUSED, "a size from a tensor's data"),
    "NegateSource": Decision(REFUSED, "a size from a tensor's data"),
    "DynamicScalarSource": Decision(REFUSED, "export only"),
    "FlattenScriptObjectSource": Decision(REFUSED, "script objects"),
    "ScriptObjectQualifiedNameSource": Decision(REFUSED, "script objects"),
    "AttrProxySource": Decision(REFUSED, "export only"),
    "SubclassAttrListSource": Decision(
        PORTABLE, "which tensors a tensor holds", "class and attributes tell: it has no check"
    ),
    "DataclassFieldsSource": Decision(REFUSED, "the fields of a class that is made anew"),
    "BackwardStateSource": Decision(REFUSED, "training only"),
    "CurrentStreamSource": Decision(REFUSED, "but for its type, which follows from the device"),
    "RandomValueSource": Decision(REFUSED, "random numbers"),
    "ConstantSource": Decision(REFUSED, "what is assumed to be constant"),
    "SyntheticLocalSource": Decision(REFUSED, "a local that Dynamo made up"),
    "TempLocalSource": Decision(NEVER, "of code generation"),
    "EphemeralSource": Decision(NEVER, "of tensors made while tracing"),
    "LocalCellSource": Decision(NEVER, "of code generation"),
    "IndexedSource": Decision(NEVER, "export only"),
    "UnwrapCollectiveTensorSource": Decision(REFUSED, "what a collective gives", since=(2, 14)),
    "ContextVarGetSource": Decision(REFUSED, "the value of a context variable", since=(2, 14)),
    "ListReverseIteratorBackingListSource": Decision(
        REFUSED, "the list that a reversed() walks", since=(2, 15)
    ),
}
"""By the name of the class in `torch._dynamo.source`."""

for _table in (GUARDS, SOURCES):
    for _name, _decision in list(_table.items()):
        if not _decision.since <= version.minor_version(torch.__version__) < _decision.before:
            del _table[_name]
