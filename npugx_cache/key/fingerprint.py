"""Forms the key of a lookup from ordered, named factors that are known before the trace.

Each factor is a name and a text. The texts are part of every manifest, so that a miss can be
explained by comparing factors. No path, pid, port, object id or clock may enter one.

`FACTORS` lists every factor. A factor that is not in the list can't be part of a key: forming the
key raises KeyError.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, TypeAlias

from npugx_cache.events import logger
from npugx_cache.portable import digest
from npugx_cache.records import NamedTuple, dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Span = Literal["process", "lookup", "call"]

_PROCESS: Span = "process"
_LOOKUP: Span = "lookup"
_CALL: Span = "call"
_SHOWN_OF_DIGEST = 12
_LONGEST_SHOWN = 60


class FactorKind(NamedTuple):
    """One factor, or a family of factors where the name ends in `.*`.

    The span says when the factor is read:
    "process": it can't change while the process lives;
    "lookup": it can change, and each lookup reads it again. A graph that is already bound keeps
    running after a change, as it does under torch.compile;
    "call": it can change, and every call of a bound graph compares it too.
    """

    name: str
    span: Span
    meaning: str


FACTORS = (
    # --- what is compiled, and how (recipe.py)
    FactorKind("function", _PROCESS, "the module and the qualified name of the function"),
    FactorKind("function.code", _CALL, "the bytecode of the function, as a digest"),
    FactorKind("backend", _PROCESS, "the name of the backend"),
    FactorKind("dynamic", _PROCESS, "the argument `dynamic` of `cache_compile`"),
    FactorKind("option.*", _LOOKUP, "an option; a custom pass counts by a digest of what it does"),
    FactorKind("pattern.*", _LOOKUP, "a pattern of `register_replacement`, in order, as a digest"),
    FactorKind("npu_fusions", _PROCESS, "the version of our own fusions for the NPU"),
    FactorKind("decomposition.*", _LOOKUP, "a custom decomposition, as a digest of what it does"),
    # --- a graph that somebody else traced, in the place of a function (pieces/piece.py)
    FactorKind("graph.*", _LOOKUP, "the nodes of the graph, its symbols, and each of its inputs"),
    FactorKind("lowering.*", _LOOKUP, "a setting that the lowering of such a graph reads"),
    # --- what makes entries readable at all (environment.py)
    FactorKind("format", _PROCESS, "the version of what an entry holds"),
    FactorKind("npugx_cache", _PROCESS, "the version of this package"),
    FactorKind("python", _PROCESS, "the version of Python and its bytecode tag"),
    FactorKind("optimize", _PROCESS, "whether Python runs with -O or -OO"),
    FactorKind("platform", _PROCESS, "the operating system and the kind of processor"),
    # --- torch and the devices (environment.py)
    FactorKind("torch", _PROCESS, "the version of torch and the commit it was built from"),
    FactorKind("torch.*", _CALL, "a switch that steers which operators torch picks"),
    FactorKind("cpu", _PROCESS, "the widest vector instructions that torch uses on this processor"),
    FactorKind("cpu.features", _PROCESS, "what functions of `torch.cpu` say of this processor"),
    FactorKind("device.*", _LOOKUP, "that a tensor of the call is on this kind of device"),
    FactorKind("cuda", _PROCESS, "the versions of CUDA and of its driver"),
    FactorKind("cuda.device", _LOOKUP, "the name and the capability of the current GPU"),
    FactorKind("npu", _PROCESS, "the version of torch_npu"),
    FactorKind("npu.cann", _PROCESS, "the version of CANN, or of the parts that make kernels"),
    FactorKind("npu.device", _LOOKUP, "the name of the current NPU"),
    # --- how compilers are set (environment.py)
    FactorKind("env.*", _LOOKUP, "an environment variable that steers Dynamo or Inductor"),
    FactorKind("dynamo.*", _LOOKUP, "a setting of Dynamo that differs from its default"),
    FactorKind("inductor.*", _LOOKUP, "a setting of Inductor that differs; backend inductor only"),
    FactorKind("cpu.instructions", _PROCESS, "all the processor can do; backend inductor only"),
    FactorKind("ge.versions", _PROCESS, "the versions of what compiles a graph for GE"),
    FactorKind("ge.*", _LOOKUP, "a setting of torch_npu that GE is told; backend ge only"),
    # --- packages of static kernels, which have keys of their own (kernel_packages.py)
    FactorKind("operators", _LOOKUP, "CANN's descriptions of the operators, as a digest"),
    FactorKind("deterministic", _LOOKUP, "whether deterministic algorithms are asked for"),
    FactorKind("deterministic.level", _LOOKUP, "how strict determinism is on the NPU"),
    FactorKind("npu.custom_operators", _LOOKUP, "the operators that were added to CANN's"),
    FactorKind("super_kernel", _LOOKUP, "whether and how CANN merges kernels"),
)
"""Every factor of every key."""


class _Spans(dict[str, Span]):
    """Spans by the names of factors. A member of a family is added when it is first asked for."""

    def __missing__(self, name: str) -> Span:
        first, dot, rest = name.partition(".")
        family = f"{first}.*"
        if not dot or rest == "*" or family not in self:
            raise KeyError(f"{name!r} is no factor of a key: add it to fingerprint.FACTORS")
        self[name] = self[family]
        return self[name]


_SPANS = _Spans((kind.name, kind.span) for kind in FACTORS)

Named: TypeAlias = tuple[str, str]
"""The name and the value of a factor."""


class Factor(NamedTuple):
    name: str
    value: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    factors: tuple[Factor, ...]
    key: str

    @classmethod
    def of(cls, named: Iterable[Named]) -> Fingerprint:
        """Raises KeyError for a name that is not in `FACTORS`."""
        factors = tuple([Factor(name, value, _SPANS[name]) for name, value in sorted(named)])
        key = digest(part for f in factors for part in f[:2])
        if logger.isEnabledFor(logging.DEBUG):
            for factor in factors:
                logger.debug("key %s: %s = %s", key[:12], factor.name, shorten_value(factor.value))
        return cls(factors=factors, key=key)


def shorten_value(value: str) -> str:
    """A value as a log line shows it: a short text as it is, anything longer by its digest."""
    if _is_hash(value):
        return value[:_SHOWN_OF_DIGEST]
    if len(value) <= _LONGEST_SHOWN:
        return value
    return f"<{len(value)} characters, sha256 {digest([value])[:_SHOWN_OF_DIGEST]}>"


def differences(
    recorded: Iterable[Iterable[str]], live: Iterable[Iterable[str]], *, place: object = ""
) -> Iterator[str]:
    """The factors that differ, in words. Each row is (name, value, ...).

    `place` says where the code of the live function is.
    """
    before = {name: value for name, value, *_ in recorded}
    now = {name: value for name, value, *_ in live}
    backends = before.get("backend"), now.get("backend")
    other_backend = None not in backends and backends[0] != backends[1]
    for name in sorted(before.keys() | now.keys()):
        was, is_ = before.get(name), now.get(name)
        if was == is_ or (other_backend and None in {was, is_}):  # no backend has all factors
            continue
        if name == "function.code":
            yield f"{name} changed {place}".rstrip()
        elif name == "optimize":
            yield f"{name} was {_command(was)}, is {_command(is_)}"
        elif was is None or is_ is None:
            yield f"{name} was {was or 'not set'}, is {is_ or 'not set'}"
        elif _is_hash(was) and _is_hash(is_):
            yield f"{name} changed"
        else:
            yield f"{name} was {was}, is {is_}"


def kind_of(name: str) -> str:
    """What a factor is about, as one of `counters.MISS_REASONS`."""
    return _KINDS.get(name) or _KINDS_OF_FAMILIES.get(name.partition(".")[0], "settings")


_KINDS = {
    **dict.fromkeys(
        ("format", "npugx_cache", "optimize", "platform", "python", "torch"), "versions"
    ),
    "graph.nodes": "code",
}
_KINDS_OF_FAMILIES = {
    **dict.fromkeys(("function",), "code"),
    **dict.fromkeys(
        ("backend", "decomposition", "dynamic", "npu_fusions", "option", "pattern"), "options"
    ),
    **dict.fromkeys(("cpu", "cuda", "device", "npu"), "device"),
    "graph": "tensors",
}


def _command(optimize: str | None) -> str:
    """How Python was started to have a value of `optimize`."""
    return f"{optimize} ({_COMMANDS.get(optimize or '', 'unknown')})"


_COMMANDS = {"0": "python", "1": "python -O", "2": "python -OO"}


def _is_hash(text: str) -> bool:
    return len(text) >= 32 and all(c in "0123456789abcdef" for c in text)
