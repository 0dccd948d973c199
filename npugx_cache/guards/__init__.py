"""Portable guards: the conditions under which a traced graph is valid, as data.

`tree` holds the data (no torch), `sources` and `check` evaluate it on live objects, `shapes` the
conditions on symbolic sizes, `wording` prints guards as Python and says why one failed.
"""

from npugx_cache.guards.tree import Check, GuardTree, Kind, Node, Step, TensorFact

__all__ = ["Check", "GuardTree", "Kind", "Node", "Step", "TensorFact"]
