"""Portable guards: the conditions under which a traced graph is valid, as data.

`tree` holds the data and does not know torch. `sources` reads live objects, `check` compares them,
`shapes` evaluates conditions on symbolic sizes. `wording` prints guards as Python and says why a
guard failed.
"""

from npugx_cache.conditions.data import Check, GuardTree, Kind, Node, Step, TensorFact

__all__ = ["Check", "GuardTree", "Kind", "Node", "Step", "TensorFact"]
