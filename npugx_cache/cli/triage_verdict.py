"""Says in which layer the first finding of a triage lies, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from npugx_cache.cli import output
from npugx_cache.cli.triage_stages import TITLES, line_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npugx_cache.cli.triage_stages import Stage
    from npugx_cache.triage.plan import Way


class Verdict(NamedTuple):
    """layer: a short name; empty if there is no finding. said, next_step: sentences."""

    layer: str
    said: str
    next_step: str


_COMPILERS = {"inductor": "Inductor's kernels", "ge": "the graph of GE"}
"""The layers of backends that compile the whole graph."""
_SWITCHES = {
    "decompose_functional_variants": "inplace_pass",
    "remove_noop_ops": "remove_noop_ops",
    "remove_copies": "remove_noop_ops",
    "npu_fusions": "pattern_fusion_pass",
    "remove_cat_ops": "remove_cat_ops",
    "remove_dead_ops": "remove_dead_ops",
    "inplace_pass": "inplace_pass",
    "input_inplace_pass": "input_inplace_pass",
}
"""Each pass that an option switches off, and the option."""
_UNSAFE = (
    "clone_output",
    "clone_input",
    "frozen_parameter",
    "unsafe_skip_npugraph_capture_validation",
)
_UNCACHED = "Until then, function.__wrapped__ runs without the cache"
_TORCHS: Mapping[Way, tuple[str, str]] = {
    "dynamo": ("torch.compile (Dynamo)", "torch.compile itself, without lowering and without us,"),
    "aot_eager": ("torch's lowering (AOTAutograd)", "torch's lowering, without our code,"),
}
_OURS: Mapping[Way, str] = {
    "traced": "npugx_cache: lowering or generated program",
    "passes": "npugx_cache: graph passes",
    "cold": "npugx_cache: capture and replay",
    "restored": "npugx_cache: restore from the store",
}


def verdict(
    stages: Sequence[Stage], found: Mapping[str, Any], about: Mapping[str, Any], folder: str
) -> Verdict:
    """`found`: the fault that the stage "bisect" found, or {}. `about`: backend and options."""
    by_way = {stage.way: stage for stage in stages}
    bad = next((stage for stage in stages if not stage.good), None)
    if bad is None:
        return _agree(stages)
    what = _words(bad)
    if bad.way == "eager":
        return Verdict(
            "the function itself",
            f"The function itself {what}, without torch.compile and without the cache.",
            f"Correct the function; {folder}/{bad.log} has its output.",
        )
    if bad.way == "eager again":
        return _not_deterministic(bad, what, stages)
    if bad.kind == "inputs":
        return Verdict(
            "the inputs",
            f"The program goes another way in the stage {TITLES[bad.way]!r}: {bad.detail}.",
            "Make the program do the same at each start, with equal inputs.",
        )
    if bad.way in _TORCHS:
        return _torchs(bad, what, by_way, folder)
    if bad.kind == "uncached":
        return Verdict(
            "npugx_cache: refused",
            f"The call runs uncached{_of(bad)}: {bad.detail}.",
            "Do what the reason says, or accept it: the results are eager's (docs/refusals.md).",
        )
    if bad.kind == "missed":
        return Verdict(
            "npugx_cache: restore from the store",
            f"A restarted process compiles again{_of(bad)}: {bad.detail or 'no reason is known'}.",
            "Make what the reason names equal at each start, or attach the folder to an issue.",
        )
    return _ours(bad, what, found, about, folder)


def _agree(stages: Sequence[Stage]) -> Verdict:
    by_kind = {stage.kind: stage for stage in reversed(stages)}
    said = f"All {len(stages)} stages agree with eager."
    if (close := by_kind.get("close")) is not None:
        said += f" The last bits differ from {TITLES[close.way]!r} on: {close.detail}."
    if (random := by_kind.get("random")) is not None:
        said += f" The function draws random numbers, and {TITLES[random.way]!r} draws others."
    return Verdict("", said, "If production differs, triage with its inputs and options.")


def _not_deterministic(bad: Stage, what: str, stages: Sequence[Stage]) -> Verdict:
    later = [stage for stage in stages if not stage.good and stage.way != "eager again"]
    if bad.kind == "inputs":
        return Verdict(
            "the inputs",
            f"The inputs differ from one start to the next: {bad.detail}.",
            "Make equal inputs at each start: from a seed of torch's, or from a .pt file.",
        )
    said = f"The function itself is not the same twice: eager against eager {what}."
    if later:
        said += f" By more than that differs first: {TITLES[later[0].way]!r}{_of(later[0])}."
    return Verdict(
        "the function itself",
        said,
        "Remove what changes between runs (time, unseeded numbers, atomics: see "
        "torch.use_deterministic_algorithms), and triage again.",
    )


def _torchs(bad: Stage, what: str, by_way: Mapping[Way, Stage], folder: str) -> Verdict:
    layer, subject = _TORCHS[bad.way]
    if bad.kind == "raised" and (place := line_of(bad.detail)) is not None:
        cached = by_way.get("cold")
        reason = (
            f" The cache says: {cached.detail}." if cached and cached.kind == "uncached" else ""
        )
        return Verdict(
            layer,
            f"torch.compile can't run it as one graph, because of {place}: "
            f"{first_line(bad.detail)}.{reason}",
            "Change that line or keep it out of the cached function; calls run uncached till then.",
        )
    more = (
        ""
        if bad.way == "dynamo"
        else " (TORCHDYNAMO_REPRO_AFTER=aot TORCHDYNAMO_REPRO_LEVEL=4 makes it smaller)"
    )
    return Verdict(
        layer,
        f"Not the cache: {subject} {what}.",
        f"Report it to PyTorch with {folder}/program.py{more}. {_UNCACHED}.",
    )


def _ours(
    bad: Stage,
    what: str,
    found: Mapping[str, Any],
    about: Mapping[str, Any],
    folder: str,
) -> Verdict:
    layer, options = _OURS[bad.way], about.get("options", {})
    attach = f"attach {folder} to an issue of npugx_cache"
    if name := found.get("name"):
        shows = {True: "shows it", False: "does not show it by itself"}
        shown = f"; {folder}/program.py {shows[found['shows']]}" if "shows" in found else ""
        said = f"The pass {name!r} changes the results{shown}"
        if found.get("raises"):
            said = f"The pass {name!r} fails{shown}"
        said = f"{said}: {first_line(found.get('detail', what))}."
        if name.startswith("post_grad_custom_"):
            custom = options[name]
            step = f"Correct {custom}, your pass, or leave the option {name!r} out."
            return Verdict(f"your pass {custom}", said, step)
        switch = _SWITCHES.get(name)
        if name == "pattern_fusion_pass":
            step = "Correct the replacement that you registered, or leave it out."
            return Verdict("your pattern (register_replacement)", said, step)
        way_out = f'options={{"{switch}": False}}' if switch else 'backend="aot_eager"'
        return Verdict(layer, said, f"Call with {way_out}, and {attach}.")
    said = f"The first stage that differs is {TITLES[bad.way]!r}: it {what}."
    if bad.way == "passes" and about.get("backend") in _COMPILERS:
        layer = _COMPILERS[about["backend"]]
        return Verdict(layer, said, f'Call with backend="npugraph_ex", and {attach}.')
    if bad.way == "cold":
        unsafe = [name for name in _UNSAFE if name in options]
        first = f"Leave {', '.join(unsafe)} out. " if unsafe else ""
        return Verdict(
            layer, said, f'{first}Call with options={{"force_eager": True}}, and {attach}.'
        )
    if bad.way == "restored":
        return Verdict(
            layer, said, f"Set NPUGX_CACHE=off, so that each process compiles, and {attach}."
        )
    if bad.way == "passes":
        return Verdict(layer, said, f'Call with backend="aot_eager", and {attach}.')
    return Verdict(layer, said, f"{attach[0].upper()}{attach[1:]}. {_UNCACHED}.")


def _words(stage: Stage) -> str:
    verb = {
        "different": "gives another result",
        "raised": "raises",
        "crashed": "crashes",
        "timed out": "does not end",
        "failed": "fails",
    }.get(stage.kind, stage.kind)
    stack = f"; {stage.log} has the stack" if stage.kind == "crashed" else ""
    return f"{verb}{_of(stage)}: {first_line(stage.detail)}{stack}"


def _of(stage: Stage) -> str:
    if stage.call is None:
        return ""
    return f" (call {stage.call + 1}, {stage.function})"


def first_line(text: str) -> str:
    line = next(iter(text.strip().splitlines()), "")
    return output.in_line(line).rstrip(".")
