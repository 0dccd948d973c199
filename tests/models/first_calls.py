"""Models of transformers that install hooks at their first call, plain and cached, as JSON.

python first_calls.py CASE ...            each case with a store of its own
python first_calls.py --edited CASE ...   after a change in transformers
python first_calls.py --threads CASE ...  the first calls of four threads at once

Nothing but the cache calls the cached model, and a model of the same weights is called without the
cache. After each call their results are compared, and the state that the calls left.
"""

import importlib.util
import json
import logging
import os
import sys
import threading
import traceback
from pathlib import Path

import torch
import transformers
from transformers.utils import output_capturing

from npugx_cache import cache_compile

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("restart_run", HERE.parent / "restart" / "run.py")
restart = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(restart)

TEXT = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
    "initializer_range": 0.5,
}  # fmt: skip
EXPERTS = {**TEXT, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
IMAGE = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 8, "patch_size": 4,
}  # fmt: skip


def tokens(length=6, first=1):
    return (torch.arange(2 * length).view(2, length) + first) % 90


class Asks(torch.nn.Module):
    """A user's module around a model: a function of another file says what is asked for."""

    def __init__(self):
        super().__init__()
        self.inner = llama()

    def forward(self, ids):
        import asks

        out = self.inner(ids, use_cache=False, output_hidden_states=asks.wanted())
        return out.logits, out.hidden_states


def llama(**config):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT, **config))


def llava():
    return transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(
            vision_config=transformers.CLIPVisionConfig(**IMAGE),
            text_config=transformers.LlamaConfig(**TEXT),
            image_token_index=95,
        )
    )


def with_image(length=8, **more):
    ids = tokens(length)
    ids[:, 1:5] = 95
    pixels = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "pixel_values": pixels, "use_cache": False, **more}


def asking(wanted=True, length=6):
    return {"input_ids": tokens(length), "use_cache": False, "output_hidden_states": wanted}


PLAIN = {"input_ids": tokens(), "use_cache": False}
ROUTER = {**PLAIN, "output_router_logits": True}
CASES = {
    "llama, by config": (lambda: llama(output_hidden_states=True), [PLAIN, PLAIN]),
    "llama, in turn": (llama, [asking(), PLAIN, asking(), asking([0, -1]), PLAIN]),
    "llama, other sizes": (llama, [asking(length=9), asking(length=4)]),
    "llama, base model": (
        lambda: transformers.LlamaModel(transformers.LlamaConfig(**TEXT)),
        [{**asking(), "return_dict": True}, PLAIN],
    ),
    "mixtral, router": (
        lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(**EXPERTS)),
        [ROUTER, PLAIN, ROUTER],
    ),
    "qwen3-moe, router": (
        lambda: transformers.Qwen3MoeForCausalLM(
            transformers.Qwen3MoeConfig(**EXPERTS, moe_intermediate_size=32)
        ),
        [ROUTER, PLAIN, ROUTER],
    ),
    "llava": (llava, [with_image(), with_image()]),
    "llava, all": (
        llava,
        [with_image(output_hidden_states=True), with_image()],
    ),
    **{f"llava of {length}": (llava, [with_image(length)]) for length in (11, 13, 15)},
    "by hand": (llama, [asking(), PLAIN]),
    "function edited": (llama, [asking(), PLAIN]),
    "installer edited": (llama, [asking(), PLAIN, asking()]),
    "forward edited": (llama, [asking(), PLAIN]),
    "asks": (Asks, [{"ids": tokens()}, {"ids": tokens()}]),
}


def prepare(case, model):
    """What a user does before the first call."""
    if case == "by hand":
        output_capturing.maybe_install_capturing_hooks(model.model)


class Edit:
    """Changes in transformers that a process has and the one before it did not have."""

    def __init__(self, case):
        self.calls, self._undo = [], []
        if case == "function edited":
            original = output_capturing.maybe_install_capturing_hooks

            def counting(model):
                self.calls.append("called")
                return original(model)

            self._set(output_capturing, "maybe_install_capturing_hooks", counting)
        if case == "installer edited":
            install = output_capturing.install_all_output_capturing_hooks

            def never_done(model, prefix=None):
                self.calls.append("installed")
                install(model, prefix)
                del model._output_capturing_hooks_installed

            self._set(output_capturing, "install_all_output_capturing_hooks", never_done)
        if case == "forward edited":
            inner = transformers.LlamaModel.forward

            def forward(self, *args, output_hidden_states=None, **kwargs):
                return inner(self, *args, **kwargs)

            self._set(transformers.LlamaModel, "forward", forward)

    def _set(self, owner, name, value):
        self._undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def undo(self):
        for each in self._undo:
            setattr(*each)


def state_of(model):
    """What a first call leaves: the hooks in their order, which models say that they have them."""
    collector = output_capturing._active_collector
    hooks = {
        name: [
            [hook.__qualname__, *[repr(cell.cell_contents)[:60] for cell in hook.__closure__ or ()]]
            for hook in module._forward_hooks.values()
        ]
        for name, module in model.named_modules()
    }
    for rows in hooks.values():
        for row in rows:
            row[:] = [text for text in row if " at 0x" not in text]
    return {
        "hooks": {name: rows for name, rows in hooks.items() if rows},
        "done": [
            name
            for name, module in model.named_modules()
            if vars(module).get("_output_capturing_hooks_installed")
        ],
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "collector": [
            repr(collector.compiling),
            repr(collector.global_var),
            repr(collector.context_var.get()),
        ],
    }


def build(make):
    torch.manual_seed(0)
    return make().eval()


def values(result):
    """Plain containers of tensors: also the parts that are None, and their names."""
    if isinstance(result, dict):
        return {k: values(v) for k, v in result.items() if "Cache" not in type(v).__name__}
    if isinstance(result, (list, tuple)):
        return [values(v) for v in result]
    return result


def frames():
    if "torch._dynamo.utils" not in sys.modules:
        return 0
    counters = sys.modules["torch._dynamo.utils"].counters
    return counters["frames"]["total"] + counters["stats"]["unique_graphs"]


def of_case(case, model):
    """The model, cached in a store that cases of other names (before " of ") don't use."""
    name = case.partition(" of ")[0].replace(", ", "-")
    folder = Path(os.environ["NPUGX_CACHE_DIR"]).with_name(name)
    return cache_compile(model, cache_dir=folder)


def run(case, *, edited):
    make, calls = CASES[case]
    plain, model = build(make), build(make)
    prepare(case, plain)
    prepare(case, model)
    cached, seen, rows = of_case(case, model), frames(), []
    edit = Edit(case if edited else "")
    with restart.warnings_logged() as lines, torch.no_grad():
        for arguments in calls:
            expected = values(plain(**arguments))
            eager_state, eager_calls = state_of(plain), len(edit.calls)
            edit.calls.clear()
            got = values(cached(**arguments))
            state = state_of(model)
            state["attributes"][""].remove("forward")
            info = model.forward.cache_info()
            rows.append(
                {
                    "difference": restart.difference(expected, got),
                    "digest": restart.digest(got),
                    "state": [k for k in state if state[k] != eager_state[k]],
                    "hooks": sum(map(len, state["hooks"].values())),
                    "calls": [eager_calls, len(edit.calls)],
                    "counts": [info.hits, info.misses, info.bypasses],
                    "frames": frames() - seen,
                    "traces": traces(),
                }
            )
            edit.calls.clear()
    edit.undo()
    reasons = [str(reason) for reason in model.forward.explain()]
    return {"rows": rows, "warnings": lines, "reasons": reasons}


def traces():
    """How often this process asked Dynamo for a graph."""
    if "torch._dynamo.utils" not in sys.modules:
        return 0
    from torch._dynamo.utils import compilation_time_metrics

    return len(compilation_time_metrics.get("npugx_cache.capture", ()))


def run_threads(case):
    """Four threads call the cached model, four others meanwhile a model without the cache.

    What a call gives does not depend on which of them comes first.
    """
    make, (arguments, *_) = CASES[case]
    alone, plain, model = build(make), build(make), build(make)
    with torch.no_grad():
        expected = values(alone(**arguments))
    cached, start, found = of_case(case, model), threading.Barrier(8), []

    def call(called):
        start.wait()
        for _ in range(3):
            with torch.no_grad():
                found.append(restart.difference(expected, values(called(**arguments))))

    threads = [threading.Thread(target=call, args=[m]) for m in (cached, plain) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state, of_eager = state_of(model), state_of(alone)
    state["attributes"][""].remove("forward")
    info = model.forward.cache_info()
    return {
        "differences": [each for each in found if each is not None],
        "calls": len(found),
        "state": [name for name in state if state[name] != of_eager[name]],
        "misses": info.misses,
        "bypasses": info.bypasses,
    }


def main(cases, *, edited, in_threads):
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    results = {}
    for case in cases:
        try:
            results[case] = run_threads(case) if in_threads else run(case, edited=edited)
        except Exception:
            results[case] = {"error": traceback.format_exc()}
    print(json.dumps(results))


if __name__ == "__main__":
    sys.path.append(str(Path.cwd()))  # for `asks`
    given = [each for each in sys.argv[1:] if not each.startswith("--")]
    main(given, edited="--edited" in sys.argv, in_threads="--threads" in sys.argv)
