"""Conditions say whether a stored graph may run a call.

`data` holds them and does not know torch: a tree of nodes, and checks at nodes or on the call as a
whole. `kinds` has one row for each kind of check, with all its forms. `check` makes conditions
ready for a process: `Checker.holds` decides, `holds_quickly` repeats the answer, `failures` says
why not. `evaluate` reads live objects; `source_facts`, `shapes`, `set_order` and `process` are what
some kinds compare. `cpp_check` makes the same check in C++ for calls after the first, `code_watch`
sees patches between calls, and `arguments_only` is what `guards="inputs_unsafe"` leaves of a check.
`explain` names nodes and values for people.
"""

from npugx_cache.conditions.data import Check, Conditions, Kind, Node, Step, TensorFact

__all__ = ["Check", "Conditions", "Kind", "Node", "Step", "TensorFact"]
