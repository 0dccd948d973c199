"""Calls that a graph for the graph engine (GE) can't have, with what to write in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from npugx_cache import location
from npugx_cache.portable import NotPortable
from npugx_cache.private import ge_convert, schemas

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

NO_CONVERTER = "use backend='npugraph_ex', which needs no converters, or write it with others"

_INSTEAD = {
    "aten::scaled_dot_product_attention": (
        "write the attention with matmul and softmax (transformers: "
        "attn_implementation='eager'), or use torch_npu.npu_fused_infer_attention_score"
    ),
    "aten::index_copy": (
        "use torch_npu.scatter_update_ or slices (transformers: a DynamicCache in the place of a "
        "StaticCache)"
    ),
    "aten::index_put": "use torch_npu.scatter_update_, torch.scatter or torch.where",
}
"""Operators without a converter that models often have, and what does the same."""

_GROUPS = {
    "streams": ("an operator on streams or events", "leave streams to GE"),
    "npugx_cache": ("a scope", "leave scopes such as limit_core_num out"),
    "air": ("a scope of torchair", "leave scopes of torchair out"),
    "_c10d_functional": ("a collective", "use backend='npugraph_ex' on several ranks"),
    "c10d": ("a collective", "use backend='npugraph_ex' on several ranks"),
    "c10d_functional": ("a collective", "use backend='npugraph_ex' on several ranks"),
    "npu_define": ("a collective", "use backend='npugraph_ex' on several ranks"),
    "npugraph_ex": ("an operator of npugraph_ex", "use backend='npugraph_ex'"),
}
"""Namespaces of operators that are not served, what they are, and what to do."""


def refuse(node: fx.Node, what: str, change: str) -> NoReturn:
    """Raise `NotPortable` with the line that a call comes from, and what to write there."""
    schema = schemas.schema_of(node.target)
    change = _INSTEAD.get(schema.name, change) if schema is not None else change
    raise NotPortable(location.reason(what, location.of_text(node.stack_trace), change))


def refuse_groups(graph_module: fx.GraphModule) -> None:
    """Raise `NotPortable` for a call that no converter of any version could serve."""
    for node in graph_module.graph.nodes:
        schema = schemas.schema_of(node.target)
        if schema is not None and schema.namespace in _GROUPS:
            what, change = _GROUPS[schema.namespace]
            refuse(node, f"{what} ({node.target}), which backend 'ge' does not serve", change)


def refuse_floats(inputs: Iterable[fx.Node]) -> None:
    """Raise `NotPortable` for an input from which a dynamic trace reads a float."""
    for node in inputs:
        for user in node.users:
            schema = schemas.schema_of(user.target)
            if schema is not None and schema.name == "aten::_local_scalar_dense":
                what = "a float that dynamic=True lets vary is no input of a graph for GE"
                change = "write dynamic=None, or set torch._dynamo.config.specialize_float = True"
                refuse(user, what, change)


def refuse_operators(functional: fx.GraphModule) -> None:
    """Raise `NotPortable` for an operator that the vendor has no converter for.

    A converter that a program registered is no part of the key, so it is refused too.
    """
    for node in functional.graph.nodes:
        if not schemas.is_operator(node.target):
            continue
        where = ge_convert.own_converter(node.target)
        if not where:
            refuse(node, f"{node.target} has no converter to GE", NO_CONVERTER)
        if where.partition(".")[0] not in ("torchair", "torch_npu"):
            what = f"the converter of {node.target} to GE is this program's ({where})"
            refuse(node, what, "use backend='npugraph_ex': a stored graph can't name it")
