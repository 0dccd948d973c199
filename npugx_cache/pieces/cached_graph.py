"""`CachedGraph`: what runs in the place of a graph that somebody else traced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache.portable import NotPortable

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.backend.inference_only import Gradients
    from npugx_cache.events import Refusal


class CachedGraph:
    """Takes the values of the graph's placeholders in order, and returns what the graph returns.

    In the place of an exported program's module, takes and returns what that module does.

    `entry` is the id of its store entry, or None if the graph is not stored. What it is called with
    is the caller's word: whoever traced the graph checks that a call fits, as Dynamo does with its
    guards. `torch.compile(...).aot_compile(...)` can save it, because it has the two methods of
    torch's `SerializableCallable`.
    """

    __slots__ = ("_explained", "_run", "_saved", "entry")

    def __init__(
        self,
        run: Callable[..., Any],
        entry: str | None,
        explained: tuple[Refusal, ...],
        saved: Callable[[Gradients | None], bytes] | None = None,
    ) -> None:
        self._run = run
        self._explained = explained
        self._saved = saved
        self.entry = entry

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self._run(*inputs, **named)

    def explain(self) -> tuple[Refusal, ...]:
        """What the lookup came to: the entry that was used, or why no stored entry was."""
        return self._explained

    def for_inference(self, gradients: Gradients) -> CachedGraph:
        """The same graph where eager would record a backward graph (`backend.inference_only`)."""
        from npugx_cache.backend.inference_only import for_inference

        save = self._saved
        saved = None if save is None else (lambda _: save(gradients))
        return CachedGraph(for_inference(self._run, gradients), self.entry, self._explained, saved)

    @classmethod
    def serialize_compile_artifacts(cls, fn: CachedGraph) -> bytes:
        """The graph with all that it needs, for a file of torch's. Raises `NotPortable`."""
        if fn._saved is None:
            raise NotPortable("this graph was not made for other processes: its log line says why")
        return fn._saved(None)

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> CachedGraph:
        """The graph in a file of torch's. Raises OutdatedGraph if it does not fit this process."""
        from npugx_cache.pieces.saved import from_bytes

        return from_bytes(data)
