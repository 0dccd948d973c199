"""A graph as bytes for a file of torch's: `torch.compile(...).aot_compile(...)`.

The bytes hold the graph itself and not the id of an entry, so the file stays good when the store
is pruned. Torch unpickles such a file, so whoever can write to it can run code anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from npugx_cache.backend.options import SPECS, Options
from npugx_cache.errors import CorruptEntry, OutdatedGraph
from npugx_cache.pieces import loaded
from npugx_cache.pieces.cached_graph import CachedGraph
from npugx_cache.portable import decode, encode
from npugx_cache.store import Miss
from npugx_cache.store.format.plain import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npugx_cache.backend.inference_only import Gradients
    from npugx_cache.key.fingerprint import Factor

_MAX_BYTES, _MAX_ITEMS = 1 << 31, 1 << 24


class Saved(NamedTuple):
    """What is saved of a graph. `options` are those that captured graphs are made with."""

    title: str
    backend: str
    options: Options | None
    factors: Sequence[Factor]
    blobs: Mapping[str, bytes]

    def to_bytes(self, gradients: Gradients | None) -> bytes:
        options = self.options and {
            name: encode(getattr(self.options, name))
            for name in SPECS
            if not callable(getattr(self.options, name))
        }
        rows = [[name, value] for name, value, *_ in self.factors]
        parts = {name: self.blobs[name] for name in loaded.PARTS if name in self.blobs}
        plain = [self.title, self.backend, options, rows, parts, gradients and list(gradients)]
        return pack(plain)


def from_bytes(data: bytes) -> CachedGraph:
    """The graph in these bytes; raises OutdatedGraph if it does not fit this process."""
    try:
        plain: Any = unpack(data, max_bytes=_MAX_BYTES, max_items=_MAX_ITEMS)
        title, backend, options, factors, blobs, gradients = plain
        kept = options and Options(**{name: decode(value) for name, value in options.items()})
    except (TypeError, ValueError) as error:
        raise CorruptEntry(f"no saved graph of npugx_cache: {error!r}") from error
    if reasons := loaded.unlike_here(tuple(map(tuple, factors))):
        raise OutdatedGraph(title, "; ".join(reasons))
    run = loaded.bind_graph(blobs, title, backend, kept, ())
    if isinstance(run, Miss):
        raise OutdatedGraph(title, run.reason)
    graph = CachedGraph(run, None, (), lambda _: data)
    if gradients is None:
        return graph
    from npugx_cache.backend.inference_only import Gradients

    results, written, enabled, left = gradients
    return graph.for_inference(Gradients(tuple(results), tuple(written), enabled, left))
