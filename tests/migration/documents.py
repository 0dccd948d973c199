"""The examples of the documents that users come with, and the smallest edit that runs each here.

An edit is `old line -> new line`; the edits of all documents together are those of
`docs/migration.md`. What is no edit of the cache is apart: `sizes` make an example run in seconds
and give it what it does not say (weights, an input), `ON_CPU` takes the NPU out, and `half` and
`float32` give it the other precision.

| document | its examples |
|---|---|
| guide: knowledge of npugraph_ex (for assistants) | `ladder`; custom operators in words: `operator`, `library_operator`; the rest are `git` commands and names of pages |
| usage guide of npugraph_ex | `quick_start`, `options`, `eager_ladder`; the rest are names of pages |
| npugraph_ex tutorial with Qwen3-0.6B | `tutorial`: its sections 4, 5 and 7 as one script |
| GeConcreteGraph, from torch.compile to GE | `end_to_end_ge`, and with the default backend `end_to_end`; the rest is source of torch, torchair (Python, C++) and a call stack |
| torch.compile on an NPU | `inductor`, `npugraphs`; both train, which a cache for inference can't |
| cache_compile of npugraph_ex and of torchair | `vendors_cache`, `torchairs_cache`, `torchairs_ge_cache` |
| torch's own caches | `torchs_cache` |
"""  # noqa: E501

from __future__ import annotations

import re
import textwrap
from typing import NamedTuple

IMPORT = {"import torch": "import torch\nfrom npugx_cache import cache_compile"}
WHERE_ITS_MODEL_IS = {
    "model_path = '/mnt/workspace/models/Qwen/Qwen3-0.6B'": "model_path = given.qwen3_folder()",
    "max_new_tokens = 128": "max_new_tokens = 4",
}
ON_CPU = {
    "import torch_npu": "",
    ".npu()": "",
    "'npu:0'": "'cpu'",
    "torch.npu.synchronize()": "pass",
    '"PrivateUse1"': '"CPU"',
}
"""Parts of lines, for a machine without an NPU."""


class Example(NamedTuple):
    """`edits` and `sizes`: whole lines, old to new. `half`, `float32`: parts of lines.

    `cached`: an expression for what is cached; `results`: names whose values must be eager's.
    `entries`: how many the example stores.
    """

    text: str
    edits: dict[str, str]
    results: tuple[str, ...]
    cached: str = "opt_model.forward"
    sizes: dict[str, str] = {}  # noqa: RUF012 - never changed
    half: dict[str, str] = {}  # noqa: RUF012
    float32: dict[str, str] = {}  # noqa: RUF012
    entries: int = 1

    def for_torch_compile(self) -> Example:
        """The example as it stands in the document, but for the name of the backend."""
        text, places = re.subn(r"(backend=['\"])npugraph_ex(['\"])", r"\1npugx\2", self.text)
        assert places == self.text.count("torch.compile(") == 1
        return self._replace(text=text, edits={}, cached="")

    def script(self, *, device: str, half: bool) -> str:
        """The example after its edits; "npu" keeps what is for the NPU."""
        lines = textwrap.dedent(self.text).strip().splitlines()
        for old, new in {**self.edits, **self.sizes}.items():
            assert any(line.strip() == old for line in lines), old
            lines = [_replaced(line, old, new) for line in lines]
        text = "\n".join(lines) + "\n"
        for old, new in (self.half if half else self.float32).items():
            assert old in text, old
            text = text.replace(old, new)
        for old, new in ON_CPU.items() if device == "cpu" else ():
            text = text.replace(old, new)
        return text


def _replaced(line: str, old: str, new: str) -> str:
    if line.strip() != old:
        return line
    return textwrap.indent(new, line[: len(line) - len(line.lstrip())])


QUICK_START = Example(
    """
    import torch
    import torch_npu
    model = YourModel().npu()
    opt_model = torch.compile(model, backend="npugraph_ex", fullgraph=True, dynamic=False)
    output = opt_model(input_tensor)
    """,
    {
        **IMPORT,
        'opt_model = torch.compile(model, backend="npugraph_ex", fullgraph=True, dynamic=False)': (
            'opt_model = cache_compile(model, backend="npugraph_ex", fullgraph=True, dynamic=False)'
        ),
    },
    ("output",),
    sizes={
        "model = YourModel().npu()": "model = given.YourModel().npu()",
        "output = opt_model(input_tensor)": "output = opt_model(torch.ones(2, 8).npu())",
    },
    half={".npu()": ".npu().half()"},
)
OPTIONS = Example(
    """
    import torch
    import torch_npu
    model = YourModel().npu()
    opt_model = torch.compile(
        model,
        backend="npugraph_ex",
        fullgraph=True,
        options={
            "force_eager": False,
            "inplace_pass": True,
            "input_inplace_pass": True,
            "pattern_fusion_pass": True,
            "reuse_graph_pool_in_same_fx": True,
            "clone_input": True,
            "clone_output": False,
            "use_graph_pool": None,
            "static_kernel_compile": False,
            "remove_noop_ops": True,
            "frozen_parameter": False,
            "capture_limit": 64,
        }
    )
    output = opt_model(input_tensor)
    """,
    {**IMPORT, "opt_model = torch.compile(": "opt_model = cache_compile("},
    ("output",),
    sizes=QUICK_START.sizes,
    half={".npu()": ".npu().half()"},
)
EAGER_LADDER = QUICK_START._replace(
    text=QUICK_START.text.replace("dynamic=False", 'options={"force_eager": True}'),
    edits={
        **IMPORT,
        'opt_model = torch.compile(model, backend="npugraph_ex", fullgraph=True, '
        'options={"force_eager": True})': (
            'opt_model = cache_compile(model, backend="npugraph_ex", fullgraph=True, '
            'options={"force_eager": True})'
        ),
    },
)
LADDER = Example(
    """
    import torch
    import torch_npu
    model = YourModel().npu()
    opt_model = torch.compile(model, backend="aot_eager")
    output = opt_model(input_tensor)
    """,
    {
        **IMPORT,
        'opt_model = torch.compile(model, backend="aot_eager")': (
            'opt_model = cache_compile(model, backend="aot_eager")'
        ),
    },
    ("output",),
    sizes=QUICK_START.sizes,
    half={".npu()": ".npu().half()"},
)
OPERATOR = Example(
    """
    import torch
    import torch_npu

    @torch.library.custom_op("documents::add_one", mutates_args=())
    def add_one(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @add_one.register_fake
    def _(x):
        return torch.empty_like(x)

    @torch.library.custom_op("documents::keep", mutates_args=("cache",))
    def keep(cache: torch.Tensor, x: torch.Tensor) -> None:
        cache.add_(x)

    class Model(torch.nn.Module):
        def forward(self, x, cache):
            y = add_one(x)
            keep(cache, y)
            return y * 2

    model = Model().npu()
    x, kept = torch.ones(2, 8).npu(), torch.zeros(2, 8).npu()
    opt_model = torch.compile(model, backend="npugraph_ex", fullgraph=True, dynamic=False)
    output = opt_model(x, kept)
    """,
    QUICK_START.edits,
    ("output", "kept"),
    half={"8).npu()": "8).npu().half()"},
)
LIBRARY_OPERATOR = Example(
    """
    import torch
    import torch_npu

    fragment = torch.library.Library("in_place", "FRAGMENT")
    fragment.define("write(Tensor(a!) cache, Tensor x) -> ()")
    meta = torch.library.Library("in_place", "IMPL", "Meta")

    @torch.library.impl(fragment, "write", "PrivateUse1")
    def write(cache, x):
        cache.add_(x)

    @torch.library.impl(meta, "write")
    def write_meta(cache, x):
        return None

    class Model(torch.nn.Module):
        def forward(self, x, cache):
            torch.ops.in_place.write(cache, x)
            return cache * 2

    model = Model().npu()
    x, kept = torch.ones(2, 8).npu(), torch.zeros(2, 8).npu()
    opt_model = torch.compile(model, backend="npugraph_ex", fullgraph=True, dynamic=False)
    output = opt_model(x, kept)
    """,
    QUICK_START.edits,
    ("output", "kept"),
    half={"8).npu()": "8).npu().half()"},
)
TUTORIAL = Example(
    """
    import torch
    import torch_npu
    from transformers import AutoTokenizer, AutoModelForCausalLM
    model_path = '/mnt/workspace/models/Qwen/Qwen3-0.6B'
    tokenizer = AutoTokenizer.from_pretrained(model_path, trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained(
        model_path,
        trust_remote_code=True,
        attn_implementation='eager'
    ).to('npu:0').half()
    model.eval()
    print(f'Model loaded, device: {model.device}')
    opt_model = torch.compile(
        model,
        backend='npugraph_ex',
        fullgraph=True,
        dynamic=True,
        options={"capture_limit": 256}
    )
    import time
    messages = [{'role': 'user', 'content': '你好, 请用一段话介绍 AI 助手'}]
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    input_ids = torch.tensor([tokenizer.encode(text)], dtype=torch.long).to('npu:0')
    t0 = time.time()
    max_new_tokens = 128
    generated_ids = input_ids.clone()
    for step in range(max_new_tokens):
        with torch.no_grad():
            logits = opt_model(generated_ids).logits
        next_token_id = torch.argmax(logits[:, -1, :], dim=-1, keepdim=True)
        if next_token_id.item() == tokenizer.eos_token_id:
            break
        generated_ids = torch.cat([generated_ids, next_token_id], dim=1)
    torch.npu.synchronize()
    compile_time = time.time() - t0
    response = tokenizer.decode(generated_ids[0][input_ids.shape[1]:], skip_special_tokens=True)
    print(f'A: {response}')
    times_accel = []
    for i in range(3):
        generated_ids = input_ids.clone()
        t0 = time.time()
        for step in range(max_new_tokens):
            with torch.no_grad():
                logits = opt_model(generated_ids).logits
            next_token_id = torch.argmax(logits[:, -1, :], dim=-1, keepdim=True)
            if next_token_id.item() == tokenizer.eos_token_id:
                break
            generated_ids = torch.cat([generated_ids, next_token_id], dim=1)
        torch.npu.synchronize()
        times_accel.append(time.time() - t0)
    avg_accel = sum(times_accel) / len(times_accel)
    first_logits, first_ids = logits, generated_ids
    baseline_model = AutoModelForCausalLM.from_pretrained(
        model_path,
        trust_remote_code=True,
        attn_implementation='eager'
    ).to('npu:0').half()
    baseline_model.eval()
    for i in range(3):
        generated_ids = input_ids.clone()
        for step in range(max_new_tokens):
            with torch.no_grad():
                logits = baseline_model(generated_ids).logits
            next_token_id = torch.argmax(logits[:, -1, :], dim=-1, keepdim=True)
            if next_token_id.item() == tokenizer.eos_token_id:
                break
            generated_ids = torch.cat([generated_ids, next_token_id], dim=1)
        torch.npu.synchronize()
    assert torch.equal(first_ids, generated_ids), 'the baseline generates other tokens'
    test_prompts = [
        '请写一首关于春天的五言绝句',
        'What is the capital of France?',
        '用Python写一个快速排序算法',
    ]
    answers = []
    for prompt in test_prompts:
        messages = [{'role': 'user', 'content': prompt}]
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        input_ids = torch.tensor([tokenizer.encode(text)], dtype=torch.long).to('npu:0')
        generated_ids = input_ids.clone()
        for step in range(max_new_tokens):
            with torch.no_grad():
                logits = opt_model(generated_ids).logits
            next_token_id = torch.argmax(logits[:, -1, :], dim=-1, keepdim=True)
            if next_token_id.item() == tokenizer.eos_token_id:
                break
            generated_ids = torch.cat([generated_ids, next_token_id], dim=1)
        torch.npu.synchronize()
        print(f'Q: {prompt}')
        answers.append(generated_ids)
    """,
    {**IMPORT, "opt_model = torch.compile(": "opt_model = cache_compile("},
    ("first_logits", "first_ids", "response", "answers"),
    sizes=WHERE_ITS_MODEL_IS,
    float32={".half()": ""},
)
END_TO_END = Example(
    """
    import torch
    import torch_npu
    import torchair
    import logging
    from torchair import logger
    logger.setLevel(logging.INFO)
    torch._logging.set_logs(dynamo=logging.DEBUG,aot=logging.DEBUG,output_code=True,graph_code=True)
    from torchair import patch_for_hcom
    patch_for_hcom()
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
        def forward(self, x, y):
            return torch.add(x, y)
    model = Model().npu()
    config = torchair.CompilerConfig()
    npu_backend = torchair.get_npu_backend(compiler_config=config)
    opt_model = torch.compile(model, backend=npu_backend)
    x = torch.randn(2, 2).npu()
    y = torch.randn(2, 2).npu()
    out = opt_model(x, y)
    print(out)
    """,
    {
        "import torchair": "from npugx_cache import cache_compile",
        "from torchair import logger": 'logger = logging.getLogger("npugx_cache")',
        "from torchair import patch_for_hcom": "",
        "patch_for_hcom()": "",
        "config = torchair.CompilerConfig()": "",
        "npu_backend = torchair.get_npu_backend(compiler_config=config)": "",
        "opt_model = torch.compile(model, backend=npu_backend)": "opt_model = cache_compile(model)",
    },
    ("out",),
    half={"2).npu()": "2).npu().half()"},
)
TRAINS = {
    "optimizer.zero_grad()": "",
    "loss.backward()": "",
    "optimizer.step()": "",
}
MLP = """
    import torch
    import torch_npu
    import torch.nn as nn

    class SimpleMLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(128, 256)
            self.fc2 = nn.Linear(256, 10)

        def forward(self, x):
            x = torch.relu(self.fc1(x))
            return self.fc2(x)

    model = SimpleMLP().npu()
"""
INDUCTOR = Example(
    MLP
    + """
    compiled_model = torch.compile(
        model,
        backend="inductor",
        mode="reduce-overhead"
    )

    optimizer = torch.optim.Adam(compiled_model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()

    x = torch.randn(32, 128).npu()
    y = torch.randint(0, 10, (32,)).npu()

    for _ in range(100):
        output = compiled_model(x)
        loss = criterion(output, y)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """,
    {
        **IMPORT,
        "compiled_model = torch.compile(": "compiled_model = cache_compile(",
        'mode="reduce-overhead"': 'options={"triton.cudagraphs": True}',
        **TRAINS,
    },
    ("output", "loss"),
    cached="compiled_model.forward",
    sizes={"for _ in range(100):": "for _ in range(4):"},
    half={"MLP().npu()": "MLP().npu().half()", "128).npu()": "128).npu().half()"},
)
NPUGRAPHS = Example(
    MLP
    + """
    compiled_model = torch.compile(
        model,
        backend="npugraphs"
    )

    optimizer = torch.optim.Adam(compiled_model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()

    fixed_input = torch.randn(32, 128).npu()
    fixed_target = torch.randint(0, 10, (32,)).npu()

    for _ in range(1000):
        output = compiled_model(fixed_input)
        loss = criterion(output, fixed_target)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """,
    {**IMPORT, "compiled_model = torch.compile(": "compiled_model = cache_compile(", **TRAINS},
    ("output", "loss"),
    cached="compiled_model.forward",
    sizes={"for _ in range(1000):": "for _ in range(4):"},
    half={"MLP().npu()": "MLP().npu().half()", "128).npu()": "128).npu().half()"},
)
TRAINING = NPUGRAPHS._replace(
    edits={old: new for old, new in NPUGRAPHS.edits.items() if old not in TRAINS}
)
"""With the edit of one line alone: it can't run."""
VENDORS_CACHE = Example(
    """
    import torch
    import torch_npu
    from torch.npu.npugraph_ex.inference import cache_compile

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)
            self.cached_prompt = cache_compile(self.prompt, dynamic=True, cache_dir=cache_dir)
            self.cached_decode = cache_compile(self.decode, cache_dir=cache_dir, global_rank=0)

        def forward(self, x, kv, prompt=False):
            return self.cached_prompt(x, kv) if prompt else self.cached_decode(x, kv)

        def prompt(self, x, kv):
            return self._forward(x, kv)

        def decode(self, x, kv):
            return self._forward(x, kv)

        def _forward(self, x, kv):
            kv[0].add_(x.sum(0))
            return self.linear(x) + kv[0]

    model = Model().npu()
    kv = [torch.zeros(8).npu()]
    x = torch.randn(4, 8).npu()
    output = model(x, kv, prompt=True), model(x[:2], kv)
    """,
    {
        "from torch.npu.npugraph_ex.inference import cache_compile": (
            "from npugx_cache import cache_compile"
        ),
        "self.cached_decode = cache_compile(self.decode, cache_dir=cache_dir, global_rank=0)": (
            "self.cached_decode = "
            "cache_compile(self.decode, dynamic=True, cache_dir=cache_dir, global_rank=0)"
        ),
    },
    ("output", "kv"),
    cached="model.cached_prompt, model.cached_decode",
    sizes={"import torch": 'import torch\ncache_dir = os.environ["NPUGX_CACHE_DIR"]'},
    half={".npu()": ".npu().half()"},
    entries=2,
)
TORCHAIRS_CACHE = Example(
    """
    import torch
    import torch_npu
    import torchair
    model = YourModel().npu()
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.aclgraph_config.capture_limit = 128
    opt_model = torchair.inference.cache_compile(model.forward, config=config, dynamic=False, ge_cache=True)
    output = opt_model(input_tensor)
    """,  # noqa: E501
    {
        "import torchair": "from npugx_cache import cache_compile",
        "config = torchair.CompilerConfig()": "",
        'config.mode = "npugraph_ex"': "",
        "config.aclgraph_config.capture_limit = 128": 'options = {"capture_limit": 128}',
        "opt_model = torchair.inference.cache_compile(model.forward, config=config, dynamic=False, "
        "ge_cache=True)": (
            "opt_model = cache_compile(model.forward, options=options, dynamic=False)"
        ),
    },
    ("output",),
    cached="opt_model",
    sizes=QUICK_START.sizes,
    half={".npu()": ".npu().half()"},
)
TORCHS_CACHE = Example(
    """
    import torch
    import torch_npu
    torch._dynamo.config.caching_precompile = True
    model = YourModel().npu()
    opt_model = torch.compile(model, mode="max-autotune-no-cudagraphs", dynamic=True)
    output = opt_model(input_tensor)
    """,
    {
        **IMPORT,
        "torch._dynamo.config.caching_precompile = True": "",
        'opt_model = torch.compile(model, mode="max-autotune-no-cudagraphs", dynamic=True)': (
            'opt_model = cache_compile(model, backend="inductor", '
            'options={"max_autotune": True}, dynamic=True)'
        ),
    },
    ("output",),
    sizes=QUICK_START.sizes,
    half={".npu()": ".npu().half()"},
)
END_TO_END_GE = END_TO_END._replace(
    edits={
        **IMPORT,
        "opt_model = torch.compile(model, backend=npu_backend)": (
            'opt_model = cache_compile(model, backend="max-autotune")'
        ),
    },
)
"""As the document goes on, in GE mode: one line is another one, and all of torchair's stay."""
TORCHAIRS_GE_CACHE = TORCHAIRS_CACHE._replace(
    text=TORCHAIRS_CACHE.text.replace(
        'config.mode = "npugraph_ex"', 'config.ge_config.oo_level = "O3"'
    ).replace("    config.aclgraph_config.capture_limit = 128\n", ""),
    edits={
        "import torchair": "from npugx_cache import cache_compile",
        "config = torchair.CompilerConfig()": "",
        'config.ge_config.oo_level = "O3"': (
            'options = {"ge_config.oo_level": "O3", "ge_cache": True}'
        ),
        "opt_model = torchair.inference.cache_compile(model.forward, config=config, dynamic=False, "
        "ge_cache=True)": (
            'opt_model = cache_compile(model.forward, backend="max-autotune", options=options, '
            "dynamic=False)"
        ),
    },
)
EXAMPLES = {
    "ladder": LADDER,
    "operator": OPERATOR,
    "library_operator": LIBRARY_OPERATOR,
    "quick_start": QUICK_START,
    "options": OPTIONS,
    "eager_ladder": EAGER_LADDER,
    "tutorial": TUTORIAL,
    "end_to_end": END_TO_END,
    "end_to_end_ge": END_TO_END_GE,
    "inductor": INDUCTOR,
    "npugraphs": NPUGRAPHS,
    "vendors_cache": VENDORS_CACHE,
    "torchairs_cache": TORCHAIRS_CACHE,
    "torchairs_ge_cache": TORCHAIRS_GE_CACHE,
    "torchs_cache": TORCHS_CACHE,
}
ON_CPU_ALONE = ("inductor", "torchs_cache")
"""Inductor's kernels are compiled for a CPU; on an NPU the cache says so and stores nothing."""
ON_NPU_ALONE = ("end_to_end_ge", "torchairs_ge_cache")
"""GE is the graph engine of an NPU."""
OF_TORCH_COMPILE = {
    name: example.for_torch_compile()
    for name, example in EXAMPLES.items()
    if "torch.compile(" in example.text and "npugraph_ex" in example.text
}
"""The examples that call `torch.compile` with the vendor's backend: they need no other edit."""
