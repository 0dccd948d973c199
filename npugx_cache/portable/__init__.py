"""Turns live Python values and objects into plain, canonical data, and back. Does not import torch.

`values` encodes objects by their value, and functions, classes, modules and operators by a name
(an identity) by which another process finds the same object again; a name never holds an address.
"""

from npugx_cache.portable.digest import digest
from npugx_cache.portable.texts import same, seal, texts_in
from npugx_cache.portable.values import (
    PLAIN_MEMBERS,
    NotPortable,
    OnlyHere,
    Plain,
    all_code,
    body_of,
    code_hash,
    contents,
    decode,
    describe,
    encode,
    encoded_keys,
    expression,
    function_chain,
    has_body,
    has_name,
    identity,
    is_covered_class,
    is_float_of_numpy,
    is_named,
    look_up,
    module_of,
    ordered_keys,
    resolve,
    resolve_op,
    unwrap,
)

__all__ = [
    "PLAIN_MEMBERS",
    "NotPortable",
    "OnlyHere",
    "Plain",
    "all_code",
    "body_of",
    "code_hash",
    "contents",
    "decode",
    "describe",
    "digest",
    "encode",
    "encoded_keys",
    "expression",
    "function_chain",
    "has_body",
    "has_name",
    "identity",
    "is_covered_class",
    "is_float_of_numpy",
    "is_named",
    "look_up",
    "module_of",
    "ordered_keys",
    "resolve",
    "resolve_op",
    "same",
    "seal",
    "texts_in",
    "unwrap",
]
