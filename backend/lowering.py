"""Lowers functions to graphs of aten operators, with torch's private fake tensors and make_fx.

Checked on torch 2.11 and 2.13. Importing this module loads sympy, so a hit must not import it.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import sys
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import _prims_common, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import TracingContext, detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, is_fake
from torch.fx import _lazy_graph_module, operator_schemas
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv, rebind_unbacked
from torch.fx.node import map_aggregate, map_arg
from torch.fx.traceback import preserve_node_meta
from torch.utils._pytree import tree_flatten

from npugx_cache.backend import graph_calls, inner_tensors, subgraphs
from npugx_cache.backend.dense_operators import dense_form
from npugx_cache.backend.dropout import eager_form
from npugx_cache.portable import NotPortable, is_covered_class
from npugx_cache.private import determinism, meshes, python_forms, streams
from npugx_cache.private.runtime import depends_on_data, is_plain, is_wrapper, operator_name

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator, Mapping, Sequence

Told: TypeAlias = "Callable[[types.FrameType, str, object], None]"
"""Is told frames: a frame, the event, and the function in C that the frame calls."""

TORCHS_NAMESPACES = ("aten", "prims", "prim", "_c10d_functional", "streams")


def lower(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    decompositions: Mapping[Any, Any] | None,
    ran: Told | None = None,
    ran_for: Told | None = None,
) -> fx.GraphModule:
    """Trace a function on fake copies of its inputs to a graph of aten operators.

    The graph is not functionalised: it writes to its inputs where the function does. If Dynamo is
    tracing, the fake inputs are created as AOTAutograd creates them, with Dynamo's fake mode and
    symbolic contexts, so that Dynamo and this trace use the same symbols.
    A tensor that holds others (`inner_tensors`) becomes one input for each that it holds; its
    operators are then Python code of its class. `ran` is told each "call" and "return" of a frame,
    and each "c_call" of a function in C; `ran_for` the same, while a step runs that calls an
    operator that torch does not have.
    Raises `NotKept` for a graph with a call that the lowered graph could not hold, and
    `NotPortable` for a tensor that holds others and can't be taken apart.
    """
    if isinstance(function, fx.GraphModule):
        _refuse_what_is_lost(function)
    mode = _mode_for(inputs)
    with torch.no_grad(), mode, enable_python_dispatcher(), python_forms.step_aside():
        fakes = _fakes(mode, inputs)
        held = [_held(value) for value in fakes]
        parts = [each.parts if each else () for each in held]
        is_told = ran is not None and (any(parts) or any(map(_is_mesh, inputs)))
        if is_told:
            meshes.forget_plans()
        allowed = mode.allow_non_fake_inputs
        mode.allow_non_fake_inputs = True  # tensors that a graph holds as constants are real
        steps = _Steps(function) if isinstance(function, fx.GraphModule) else None
        if steps:
            steps.notes.classes, steps.notes.ran_for = _classes_of(held), ran_for
        try:
            # Each operator keeps the stack of the step it comes from, and its stream.
            with (
                preserve_node_meta(),
                streams.current_kept(),
                determinism.kept(),
                _told(ran) if ran is not None and is_told else contextlib.nullcontext(),
                # Nobody runs the graph as it is now, so torch need not write code for it.
                _lazy_graph_module._use_lazy_graph_module(True),
            ):
                lowered = make_fx(
                    _flat(_with_inner(steps.run if steps else function, held)),
                    decomposition_table=dict(decompositions or {}),
                )(*inner_tensors.taken_apart(fakes, parts))
        finally:
            mode.allow_non_fake_inputs = allowed
    _refuse_lost_tensors(lowered, held)
    if call := _first_shared(lowered):
        what = f"a function that {call.target} calls returns what it was given, or a view of it"
        raise NotKept(what, call.stack_trace, "return a copy: .clone()")
    streams.make_switches_explicit(lowered.graph)
    lowered.meta[RESHAPED] = steps.notes.reshaped if steps else None
    lowered.meta[COPIED] = tuple(steps.notes.copied) if steps else ()
    lowered.meta[PARTS] = tuple(parts)
    if ran is not None:
        lowered.meta[HELD] = tuple(each.value if each else None for each in held)
    return lowered


RESHAPED = "npugx_reshaped"
"""A key of the lowered graph's `meta`. The value is the target and the stack of the first step that
changed the sizes or strides of a tensor that it was given, or None."""


COPIED = "npugx_copied"
"""A key of the lowered graph's `meta`. The value is the calls that copy a tensor, and their stacks.

Only copies in steps that return a view if the sizes allow one, such as `reshape`, and only if a
size depends on data, so that the trace could not ask whether they do."""

PARTS = "npugx_parts"
"""A key of the lowered graph's `meta`. The value has the `inner_tensors.Parts` of each input of the
function: the graph has an input for each part."""

HELD = "npugx_held"
"""A key of the lowered graph's `meta`. The value has the traced value of each input of the function
that holds other tensors, and None for the other inputs. It is there if `ran` was given."""


class NotKept(Exception):
    """Raised for a call that does something which the lowered graph would not do.

    `what` says what the call does, `change` what the user can do about it; `stack` is the stack of
    the call.
    """

    def __init__(
        self, what: str, stack: str | None, change: str = "do this outside the cached function"
    ) -> None:
        super().__init__(what)
        self.what, self.stack, self.change = what, stack, change


# --- tensors that hold other tensors


def _is_mesh(value: Any) -> bool:
    return meshes.is_mesh(getattr(value, "real_obj", value))  # Dynamo wraps a mesh


def _held(value: Any) -> inner_tensors.Held | None:
    return inner_tensors.Held.by(value) if is_wrapper(value) else None


def _with_inner(
    function: Callable[..., Any], held: Sequence[inner_tensors.Held | None]
) -> Callable[..., Any]:
    """`function` for arguments in which the tensors that hold others have been taken apart.

    make_fx follows the very tensors that it is given. They are still in those that held them, so
    these are handed on as they are: nothing is lost that their class would not make anew.
    """
    if not any(held):
        return function

    def run(*given: Any) -> Any:
        values, place = [], 0
        for each in held:
            if each is None:
                values.append(given[place])
                place += 1
            else:
                own = given[place : place + len(each.leaves)]
                assert all(a is b for a, b in zip(own, each.leaves, strict=True))
                values.append(each.value)
                place += len(own)
        result = function(*values)
        leaves, _ = tree_flatten(result)
        for leaf in leaves:
            if is_wrapper(leaf):
                kind = type(leaf).__qualname__
                raise NotPortable(f"a {kind}, which holds other tensors, leaves the graph")
        return result

    return run


def _classes_of(held: Sequence[inner_tensors.Held | None]) -> frozenset[type]:
    return frozenset(
        type(one) for each in held if each for one in inner_tensors.wrappers_in(each.value)
    )


def _refuse_other_classes(result: Any, known: frozenset[type]) -> None:
    """Refuse a tensor of user code that holds others, if its class is not that of an input.

    Nobody would look at what the code of its class reads.
    """
    for leaf in tree_flatten(result)[0]:
        for each in inner_tensors.wrappers_in(leaf):
            if type(each) not in known and not is_covered_class(type(each)):
                kind = type(each).__qualname__
                raise NotPortable(f"a {kind}, which holds other tensors, is made inside")


def _refuse_lost_tensors(
    lowered: fx.GraphModule, held: Sequence[inner_tensors.Held | None]
) -> None:
    """Refuse what the class of a tensor that holds others did besides calling operators."""
    for each in filter(None, held):
        if not each.is_unchanged():
            kind = type(each.value).__qualname__
            raise NotPortable(f"a {kind} holds other tensors after the call than before")
    for node in lowered.graph.nodes if any(held) else ():
        if node.op == "get_attr" and isinstance(getattr(lowered, node.target, None), torch.Tensor):
            for user in node.users:
                if user.target is not torch.ops.aten.lift_fresh_copy.default:
                    raise NotPortable(f"{user.target} reads a tensor that has no guard")


@contextlib.contextmanager
def _told(ran: Told) -> Iterator[None]:
    """Tell `ran` each frame of Python code that this thread begins and ends, but not in `_ONCE`.

    And each function in C that such a frame calls.
    """
    before: Any = sys.getprofile()
    inside = 0

    def note(frame: types.FrameType, event: str, arg: Any) -> None:
        nonlocal inside
        if getattr(before, "__code__", None) is note.__code__:  # one of ours is told as well
            before(frame, event, arg)
        if frame.f_code in _ONCE:
            inside += (event == "call") - (event == "return")
        elif event in ("call", "return", "c_call") and not inside:
            ran(frame, event, arg)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)


def _refuse_what_is_lost(graph_module: fx.GraphModule) -> None:
    found = graph_calls.first_refused(graph_module)
    if found is not None:
        node, what = found
        raise NotKept(what, node.stack_trace)
    use = streams.unnumbered(subgraphs.nodes_of(graph_module))
    if use is not None:
        raise NotKept(streams.UNNUMBERED, use.stack_trace)


def _first_shared(lowered: fx.GraphModule) -> fx.Node | None:
    """The first call that runs a graph whose result may share memory with the graph's inputs.

    Eager then returns the very tensor that it was given, or not, as the data say. The traced code
    has been told that the result is a new tensor.
    """
    calls: Iterator[tuple[fx.GraphModule, fx.Node]] = (
        (module, node)
        for module in lowered.modules()
        if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
        if subgraphs.runs_graphs(node)
    )
    for module, call in calls:
        if any(map(_returns_shared, subgraphs.run_by(module, call))):
            return call
    return None


def _returns_shared(inner: fx.GraphModule) -> bool:
    """Whether a result of a graph may share memory with its inputs, or with another result."""
    *nodes, output = inner.graph.nodes
    results: list[fx.Node] = []
    map_arg(output.args, results.append)
    given = [each for each in nodes if each.op in ("placeholder", "get_attr")]
    known = [storage for each in given for storage in storages(each.meta.get("val"))]
    made = [storage for each in results for storage in storages(each.meta.get("val"))]
    return bool(set(known) & set(made)) or len(made) != len(set(made))


class _Notes:
    """What is noted while a graph and the graphs inside it run node by node.

    `reshaped` is the first step that changed the layout of an argument. `copied` as in COPIED.
    `classes` are those of the inputs that hold others.
    `ran_for` as `lower` takes it.
    """

    def __init__(self) -> None:
        self.reshaped: tuple[str, str | None] | None = None
        self.copied: list[tuple[fx.Node, str | None]] = []
        self.classes: frozenset[type] = frozenset()
        self.ran_for: Told | None = None


class _Steps(fx.Interpreter):
    """Runs a graph node by node, and notes the first one that changes the layout of an argument.

    The operators inside one step may change the layout of tensors that the same step created:
    `adaptive_avg_pool2d` does.
    """

    def __init__(self, graph_module: fx.GraphModule, notes: _Notes | None = None) -> None:
        super().__init__(graph_module)
        self.notes = notes or _Notes()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self._modes = graph_calls.modes()
        try:
            return super().run(*args, **kwargs)
        finally:  # if the graph raised, some of its modes are still entered
            graph_calls.end(self.env)
            if graph_calls.modes() != self._modes:
                self._modes.set()

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "get_attr" and n.users and all(map(_calls_functions, n.users)):
            inner: fx.GraphModule = self.fetch_attr(str(n.target))
            return _flat(_Steps(inner, self.notes).run)
        given = [self.env[node] for node in n.all_input_nodes]
        before, traced = [_layout(value) for value in given], len(_traced_so_far())
        with _told_for(self.notes.ran_for) if self._runs_custom(n) else contextlib.nullcontext():
            result = super().run_node(n)
        _refuse_other_classes(result, self.notes.classes)
        if "unbacked_bindings" in n.meta:  # what Dynamo assumed holds for the symbols of this trace
            rebind_unbacked(_shape_env(), n, result)
        if not _is_clone(n.target):
            new = islice(reversed(_traced_so_far()), len(_traced_so_far()) - traced)
            self.notes.copied += ((each, n.stack_trace) for each in new if _copies_by_data(each))
        left_nothing = result is None and len(_traced_so_far()) == traced
        if left_nothing and n.op.startswith("call_") and not graph_calls.may_leave_nothing(n):
            raise NotKept(graph_calls.not_held(str(n.target)), n.stack_trace)
        if n.op == "output" and graph_calls.modes() != self._modes:
            last = graph_calls.last_that_sets_a_mode(n.graph)
            what = "a mode of torch's (grad, inference) is left changed"
            raise NotKept(what, last.stack_trace if last is not None else None)
        if self.notes.reshaped is None and before != [_layout(value) for value in given]:
            self.notes.reshaped = str(n.target), n.stack_trace
        return result

    def _runs_custom(self, node: fx.Node) -> bool:
        """Whether a node calls a custom operator, or one of torch's that runs a graph with such."""
        if _is_custom(node.target):
            return True
        module: Any = self.module
        inner = () if _calls_functions(node) else subgraphs.run_by(module, node)
        return any(_is_custom(each.target) for graph in inner for each in subgraphs.nodes_of(graph))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        form = dense_form(target) or eager_form(target) or target
        return super().call_function(form, args, kwargs)


def _calls_functions(node: fx.Node) -> bool:
    """Whether a call of a Dynamo graph calls any function that it is given for a graph."""
    return subgraphs.runs_graphs(node) or dense_form(node.target) is not None


def _traced_so_far() -> Any:
    """The nodes that the trace that runs has made."""
    mode: Any = get_proxy_mode()
    return mode.tracer.graph.nodes


def _shape_env() -> ShapeEnv | None:
    mode = detect_fake_mode()
    return mode.shape_env if mode is not None else None


def _is_clone(target: Any) -> bool:
    return getattr(target, "__name__", target) in ("clone", "clone.default")


def _copies_by_data(node: fx.Node) -> bool:
    """Whether a call in the lowered graph copies a tensor with a size that only data tell."""
    if node.target is not torch.ops.aten.clone.default:
        return False
    values = [node.meta.get("val"), *(each.meta.get("val") for each in node.all_input_nodes)]
    return any(map(depends_on_data, values))


def _is_custom(target: object) -> bool:
    name = operator_name(target)
    if name is None or name[0] == "hop":
        return False
    namespace = name[1] if name[0] == "op" else name[1].removeprefix("torch.ops.").split(".")[0]
    return namespace not in TORCHS_NAMESPACES


_ONCE = (
    vars(importlib)["_bootstrap"]._find_and_load.__code__,
    vars(operator_schemas)["_torchscript_schema_to_signature"].__code__,
)
"""The code that imports a module that is not loaded yet, and torch's that evaluates the types of an
operator. What these run, only the first trace of a process would see."""


def _told_for(told: Told | None) -> contextlib.AbstractContextManager[None]:
    """Tell `told` the functions that this thread calls inside a step.

    Code that an import runs is left out, because only the first trace of a process would see it.
    Functions of the imported module count when they are called. So is code that FX made of a graph.
    """
    if told is None:
        return contextlib.nullcontext()

    def note(frame: types.FrameType, event: str, arg: object) -> None:
        if not frame.f_code.co_filename.startswith(_MADE_BY_FX):
            told(frame, event, arg)

    return _told(note)


_MADE_BY_FX = "<eval_with_key>."


def _layout(value: Any) -> list[Any]:
    """Sizes, strides and offset of a tensor, in a form that can be compared without side effects.

    We compare `_expr` of a symbol: comparing the symbols themselves would add guards, and `expr`
    may change when a symbol gets a value.
    """
    if is_wrapper(value):
        held = inner_tensors.leaves(value, inner_tensors.parts_of(value))
        return [each for leaf in held for each in _layout(leaf)]
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return []
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    return [n.node._expr if isinstance(n, torch.SymInt) else n for n in numbers]


def traced_alike(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy of an aten graph in which all traced values belong to one fake mode.

    Passes compare the storages and offsets of traced values. If each value has a fake mode of its
    own, as after make_fx on real tensors, then views don't share a storage and offsets are lost.
    We trace such a graph again, or drop its values if the sizes of its inputs are not known.
    """
    nodes = list(graph_module.graph.nodes)
    values = [node.meta["val"] for node in nodes if "val" in node.meta]
    inputs = [node.meta.get("val") for node in nodes if node.op == "placeholder"]
    try:
        consistent = detect_fake_mode(values) is not None
    except AssertionError:
        consistent = False
    if consistent or not any(isinstance(value, torch.Tensor) for value in values):
        return copy.deepcopy(graph_module)
    if all(map(_is_static, inputs)):
        mode = FakeTensorMode()
        with mode:
            fresh = [_blank(value) for value in inputs]
        return lower(graph_module, fresh, None)
    stripped = copy.deepcopy(graph_module)
    for node in stripped.graph.nodes:
        node.meta.pop("val", None)
    return stripped


def _is_static(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return isinstance(value, (int, float))
    return all(isinstance(size, int) for size in (*value.shape, *value.stride()))


def _blank(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)


def _flat(function: Callable[..., Any]) -> Callable[..., Any]:
    def flat(*inputs: Any) -> Any:  # make_fx reads the signature of what it is given
        return function(*inputs)

    return flat


def fake_inputs(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """Fake values that have all that `lower` would see of the inputs of a graph.

    Where Dynamo calls a backend, such values are on the placeholders, from Dynamo's own trace. To
    make others takes 0.2 ms each, with all parameters of a model among them. They are made where
    the graph holds tensors, which become fake `beside` them.
    """
    mode = _mode_for(inputs)
    nodes = graph_module.graph.nodes
    noted = [node.meta.get("example_value") for node in nodes if node.op == "placeholder"]
    is_noted = len(noted) == len(inputs) and all(map(partial(_is_of, mode), noted, inputs))
    if is_noted and all(node.op != "get_attr" for node in nodes):
        return noted
    with torch.no_grad():
        return _fakes(mode, inputs)


def beside(inputs: Sequence[Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Makes the fake tensors with which `lower` would trace further inputs, beside these fake ones.

    What shares memory with a tensor that has become fake before shares memory with its fake.
    """
    mode = _mode_for(inputs)
    return partial(mode.from_tensor, static_shapes=True)


def _is_of(mode: FakeTensorMode, noted: Any, given: Any) -> bool:
    """Whether a noted value stands for a given input, with the symbols that `lower` would use.

    The trace may have changed the layout of a value in place; then the value stands for no input.
    """
    if isinstance(given, torch.SymInt) and isinstance(noted, torch.SymInt):
        return bool(noted.node.expr == given.node.expr)
    if not isinstance(given, torch.Tensor) or is_fake(given):
        return noted is given
    return (
        isinstance(noted, FakeTensor)
        and noted.fake_mode.shape_env is mode.shape_env is not None
        and is_plain(given)
        and noted.layout is given.layout is torch.strided
        and (noted.dtype, noted.device) == (given.dtype, given.device)
        and (noted.requires_grad, len(noted.shape)) == (given.requires_grad, len(given.shape))
        and (noted.is_conj(), noted.is_neg()) == (given.is_conj(), given.is_neg())
        and _hints(noted) == _hints(given)
    )


def _hints(tensor: torch.Tensor) -> list[int]:
    numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return [n.node.hint if isinstance(n, torch.SymInt) else n for n in numbers]


def _mode_for(inputs: Sequence[Any]) -> FakeTensorMode:
    context = TracingContext.try_get()
    try:
        mode = detect_fake_mode(inputs) or (context and context.fake_mode)
    except AssertionError:  # until torch 2.11 also where Dynamo's mode is not that of all inputs
        modes = {id(each.fake_mode): each for each in inputs if isinstance(each, FakeTensor)}
        if len(modes) != 1:
            raise
        mode = next(iter(modes.values())).fake_mode
    return mode or FakeTensorMode(shape_env=ShapeEnv())


def _fakes(mode: FakeTensorMode, inputs: Sequence[Any]) -> list[Any]:
    context = TracingContext.try_get()
    known = context.tensor_to_context if context else {}
    return [_fake(mode, value, known) for value in inputs]


def _fake(mode: FakeTensorMode, value: Any, known: Any) -> Any:
    if not isinstance(value, torch.Tensor) or is_fake(value):
        return value
    symbolic = known.get(value)
    if symbolic is None:
        return mode.from_tensor(value, static_shapes=True)
    return mode.from_tensor(value, symbolic_context=symbolic, source=symbolic.tensor_source)


def storages(value: Any) -> list[int]:
    """The identity of each tensor's storage in a traced value; equal for views of one tensor."""
    if isinstance(value, (list, tuple)):
        return [storage for item in value for storage in storages(item)]
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return []
    return [value.untyped_storage()._cdata]


def trace_value(node: fx.Node) -> None:
    """Give a node that a pass added the fake value that a trace would have given it.

    If an argument has no value, the node gets none either, and passes treat it as unknown.
    """
    arguments: list[fx.Node] = node.all_input_nodes
    if any("val" not in argument.meta for argument in arguments):
        return
    mode = detect_fake_mode([argument.meta["val"] for argument in arguments])
    if mode is None or not callable(node.target):
        return
    args, kwargs = map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    with torch.no_grad(), mode, enable_python_dispatcher(), python_forms.step_aside():
        node.meta["val"] = node.target(*args, **kwargs)


def inline(node: fx.Node, function: Callable[..., Any]) -> Any:
    """Trace `function` on the arguments of a call, and insert its calls before the node.

    The node itself stays. Returns the result of `function` with nodes for values; None if an
    argument has no traced value.
    """
    inputs: list[fx.Node] = node.all_input_nodes
    if any("val" not in each.meta for each in inputs):
        return None

    def flat(*values: Any) -> Any:
        known = dict(zip(inputs, values, strict=True))
        args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
        return function(*args, **kwargs)

    traced = lower(flat, [each.meta["val"] for each in inputs], None)
    copies: dict[fx.Node, Any] = {}
    placeholders = iter(inputs)
    with node.graph.inserting_before(node):
        for each in traced.graph.nodes:
            if each.op == "placeholder":
                copies[each] = next(placeholders)
            elif each.op == "output":
                return map_arg(each.args[0], copies.__getitem__)
            else:
                copies[each] = node.graph.node_copy(each, copies.__getitem__)
    return None


def without_functionalisation(target: Any, copy: Callable[[Any], Any]) -> Callable[..., Any]:
    """A function that does what a call of auto_functionalized does, with `copy` for its copies.

    It takes the call's arguments, copies the tensors that the operator writes to, calls the
    operator on the copies, and returns the results followed by the copies.
    """
    from torch._higher_order_ops import auto_functionalize as torchs

    def first(operator: Any, **kwargs: Any) -> Any:
        names, _ = torchs.get_mutable_args(operator)
        kwargs |= {name: map_aggregate(kwargs[name], copy) for name in names}
        return torchs.auto_functionalized_dense(operator, (), **kwargs)

    def second(operator: Any, **kwargs: Any) -> Any:
        kwargs["_all_bases"] = [copy(base) for base in kwargs.get("_all_bases", ())]
        return torchs.auto_functionalized_v2_dense(operator, (), **kwargs)

    return first if target is torch.ops.higher_order.auto_functionalized else second


clone_preserve_strides: Callable[[torch.Tensor], torch.Tensor]
clone_preserve_strides = _prims_common.clone_preserve_strides
"""Copies a tensor with its strides and offset, even if its elements have gaps or overlap."""


def static_inputs(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any] | None = None
) -> tuple[int, ...]:
    """Positions of the inputs that are parameters, or that Dynamo marked as static addresses."""
    inputs = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    examples = example_inputs or [None] * len(inputs)
    return tuple(
        position
        for position, (node, example) in enumerate(zip(inputs, examples, strict=False))
        if isinstance(example, torch.nn.Parameter)
        or "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
    )


def debug_folder() -> str:
    """The folder into which torch writes the debug output of this process."""
    from torch._dynamo.utils import get_debug_dir

    return str(get_debug_dir())
