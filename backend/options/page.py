"""Writes docs/options.md from the table of options; the page's first comment has the command."""

from __future__ import annotations

import sys
from dataclasses import fields

from npugx_cache.backend.ge import options as ge
from npugx_cache.backend.options.table import SPECS, Options


def _running() -> str:
    return ", ".join(f"`{name}`" for name, spec in SPECS.items() if not spec.shapes_graph)


_HEAD = f"""# Options

<!-- Made by `python -m npugx_cache.backend.options.page > docs/options.md`; do not edit. -->

Pass options as `cache_compile(..., options={{"capture_limit": 256}})`, `compile_fx(gm, inputs, options)` or `torch.compile(..., backend="npugx", options=...)`.
Names and meanings are those of the vendor's npugraph_ex.
Options are checked when a function is decorated; 0 and 1 are not booleans.
An option is part of the key of an entry, if another value can make another graph.
So workers with other values of {_running()} share entries, unless they have a custom pass, which is given all options.
An option that needs an NPU is refused with `BackendUnavailable` when the function is decorated, if torch_npu is not installed.
An option that has no effect on the devices of a graph is refused with `BackendUnavailable` when the graph is compiled.

The backends `aot_eager`, `npugraphs` and `cudagraphs` run no graph passes, so custom passes and dumps are refused with them.
`aot_eager` captures nothing, so every option below `force_eager` that differs from its default is refused with it.

The backend `inductor` takes the settings of `torch._inductor.config` instead, such as `{{"max_autotune": True, "cpp.min_chunk_size": 1024}}`.
Names are checked when a function is decorated, types when the function is first compiled.
`freezing`, `cpp_wrapper`, `fx_wrapper` and `aot_inductor.*` (except `aot_inductor.compile_wrapper_opt_level`) are refused, because they follow from how a library is stored.
Values that are not plain data are refused too.
With `triton.cudagraphs=True` the runtime of this package captures the calls, also on a CPU, and the options of capture below (`force_eager` to `use_graph_pool`) can be given as well.

The backend `ge` (`max-autotune`) takes settings of the vendor's CompilerConfig instead: [GE mode](#ge-mode).
"""  # noqa: E501 - one sentence per line

_GROUPS = {
    "remove_noop_ops": "Graph passes",
    "force_eager": "Capture and replay",
    "static_kernel_compile": "Kernels of the NPU",
    "dump_tensor_data": "Looking inside",
}
"""The headings, each by the first option below it."""

_TABLE = """
## {heading}

| option | type | default | range | effect | devices |
|---|---|---|---|---|---|
"""


_GE_MODE = """
## GE mode

The backend `ge`, which the vendor calls `max-autotune`, has CANN's graph engine (GE) compile the whole graph.
Options are settings of the vendor's CompilerConfig by their names there: `config.ge_config.oo_level = "O1"` is `options={{"ge_config.oo_level": "O1"}}`.
All of them are part of the key, and what is left out has the vendor's default, except that the vendor's own graph passes (`remove_noop_ops`, `pattern_fusion_pass`) don't run.
A process has one graph engine, which takes most options of `ge_config` and its device when it starts: a graph with others is refused there.

| option | values |
|---|---|
{served}

With `ge_cache` the model that GE compiles (`.om`) is part of the entry, and a restart needs no compile of GE's; without it each process has GE compile the graph.
GE is told a new folder and a name that is the digest of the graph, its options, and the versions of CANN and the chip, so it reads no other file.

What a name begins with, and why it is refused:

| option | why |
|---|---|
{refused}

A call that the vendor has no converter for makes the function run uncached, with the operator, its line and what to use: `scaled_dot_product_attention`, `index_copy` and `index_put` among others.
So does every call with another torch_npu than 2.13, whose converters are not known, and so do tensors on the host, collectives, streams and scopes, random numbers, `torch.cond`, and sizes that depend on data.
Inputs in a format of the NPU's own (such as FRACTAL_NZ), another stream than that of the first call, and another device than the engine's run operator by operator, with one WARNING.
"""  # noqa: E501 - one sentence per line


def _ge_mode() -> str:
    served = [f"| `{name}` | {each.type}: {each.words} |" for name, each in ge.SERVED.items()]
    refused = [f"| `{name}` | {why} |" for name, why in ge.REFUSED.items()]
    return _GE_MODE.format(served="\n".join(served), refused="\n".join(refused))


def render() -> str:
    """The page as Markdown."""
    page = _HEAD
    for each in fields(Options):
        if each.name in _GROUPS:
            page += _TABLE.format(heading=_GROUPS[each.name])
        page += _row(each.name, each.default) + "\n"
    return page + _ge_mode()


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
