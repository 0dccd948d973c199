"""Caches graphs that somebody else traced: Dynamo for `torch.compile`, a serving engine, an export.

A graph that somebody hands us is a *piece*. `graph_text` writes a piece as canonical text, of which
`piece` makes the key; `lookup` restores the entry of the key, or lowers, stores and binds the
graph. `cached_graph` is what runs. `dynamo` is the door for `torch.compile(backend="npugx")`.
Who hands us a graph decides which calls the graph runs; the cache promises that the entry is what
lowering the graph would give now.
"""
