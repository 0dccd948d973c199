"""Conditions say whether a stored graph may run a call.

`data` holds them and does not know torch: a tree of nodes, and checks at the nodes or on the call
as a whole. `kinds` has one row for each kind of check, with all its forms. `check` makes conditions
ready for a process: `Checker.holds` decides, `holds_quickly` repeats the answer, and `failures`
explains the answer. `evaluate` reads live objects; `source_facts`, `shapes`, `set_order` and
`process` are what some kinds compare. `cpp_check` makes the same check in C++ for calls after the
first, and `code_watch` sees patches between calls. `argument_facts` rules graphs out by sizes,
dtypes and plain values before anything is checked. `explain` names nodes and values for people.
"""

from npugx_cache.conditions.data import Check, Conditions, Kind, Node, Step, TensorFact

__all__ = ["Check", "Conditions", "Kind", "Node", "Step", "TensorFact"]
