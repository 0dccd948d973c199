"""Conditions say whether a stored graph may run a call.

`data` holds the guard tree and does not know torch. `evaluate` reads live objects, `check` compares
them, `shapes` and `set_order` evaluate conditions on symbolic sizes and on sets. `source_facts` and
`class_facts` compare code. `cpp_check` makes the same check in C++ for calls after the first, and
`code_watch` sees patches between calls. `explain` prints conditions as Python, and says which one
failed.
"""

from npugx_cache.conditions.data import Check, Conditions, Kind, Node, Step, TensorFact

__all__ = ["Check", "Conditions", "Kind", "Node", "Step", "TensorFact"]
