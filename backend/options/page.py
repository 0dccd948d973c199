"""The page of options, made from the table: `python -m npugx_cache.backend.options.page`."""

from __future__ import annotations

import sys
from dataclasses import fields

from npugx_cache.backend.options.table import SPECS, Options

_HEAD = """# Options

<!-- Made by `python -m npugx_cache.backend.options.page > docs/options.md`; do not edit. -->

Given as `cache_compile(..., options={"capture_limit": 256})`, `compile_fx(gm, inputs, options)` or
`torch.compile(..., backend="npugx", options=...)`. Names and meanings are those of the vendor's
npugraph_ex. They are checked when a function is decorated; 0 and 1 are not booleans. Each is part
of the key of an entry. An option that has no effect on the devices of a graph is refused with
`BackendUnavailable` when it is compiled; one that needs an NPU, where torch_npu is not installed,
when the function is decorated.

The backends `aot_eager`, `npugraphs` and `cudagraphs` run no graph passes, and `aot_eager` captures
nothing: custom passes and dumps are refused with them, and with `aot_eager` every option below
`force_eager` that differs from its default.

The backend `inductor` takes the settings of `torch._inductor.config` instead, such as
`{"max_autotune": True, "cpp.min_chunk_size": 1024}`. Names are checked when a function is
decorated, types when it is first compiled. Refused are `freezing`, `cpp_wrapper`, `fx_wrapper` and
`aot_inductor.*` (except `aot_inductor.compile_wrapper_opt_level`), which follow from how a library
is stored, and values that are no plain data. With `triton.cudagraphs=True` calls are captured by
the runtime of this package, on a CPU too, and the options of capture below (`force_eager` to
`use_graph_pool`) can be given as well.

| option | type | default | range | effect | devices |
|---|---|---|---|---|---|
"""


def render() -> str:
    """The page as Markdown."""
    rows = [_row(each.name, each.default) for each in fields(Options)]
    return _HEAD + "\n".join(rows) + "\n"


def _row(name: str, default: object) -> str:
    spec = SPECS[name]
    effect = spec.effect
    if spec.needs:
        effect += f" Only with `{spec.needs}=True`."
    shown = f"`{default!r}`"
    if spec.vendor_default:
        shown += f" (vendor: `{spec.vendor_default}`)"
    words = spec.range.words.replace("|", "\\|")
    cells = (f"`{name}`", spec.range.type, shown, words, effect, ", ".join(spec.devices))
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write(render())
