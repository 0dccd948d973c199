"""Run programs plain and cached in this process and print what happened, as JSON.

python run.py FOLDER MODULE[:PROGRAM] ...
"""

import contextlib
import hashlib
import importlib
import json
import logging
import os
import sys
import traceback

import torch

COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "sympy")


def flatten(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [type(value).__name__, *[x for k, v in value.items() for x in [k, *flatten(v)]]]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *[x for v in value for x in flatten(v)]]
    if hasattr(value, "__dict__") and "programs" in type(value).__module__:
        return [type(value).__name__, *flatten(vars(value))]
    return [value]


def difference(left, right):
    """What differs between two results, or None. Tensors may differ by rounding."""
    left, right = flatten(left), flatten(right)
    if len(left) != len(right):
        return f"{len(left)} values and {len(right)} values"
    for a, b in zip(left, right, strict=True):
        if type(a) is not type(b):
            return f"{a!r} and {b!r}"
        if isinstance(a, torch.Tensor):
            meta = [(t.dtype, t.shape, t.stride(), t.requires_grad) for t in (a, b)]
            if meta[0] != meta[1]:
                return f"{meta[0]} and {meta[1]}"
            try:
                torch.testing.assert_close(a, b, equal_nan=True)
            except AssertionError:
                return f"{a} and {b}"
            if not torch.equal(torch.signbit(a.real), torch.signbit(b.real)):
                return f"signs of {a} and {b}"
        elif a != b:
            return f"{a!r} and {b!r}"
    return None


def digest(value):
    """The same for results that are equal to the last bit, in any process."""
    whole = hashlib.sha256()
    for item in flatten(value):
        if isinstance(item, torch.Tensor):
            whole.update(f"{item.dtype} {tuple(item.shape)} {item.stride()}".encode())
            plain = item.detach().resolve_conj().resolve_neg().contiguous()
            whole.update(bytes(plain.flatten().view(torch.uint8).tolist()))
        else:
            whole.update(repr(item).encode())
    return whole.hexdigest()


class Records(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        fault = record.exc_info and "".join(traceback.format_exception(record.exc_info[1]))
        self.lines.append(f"{record.getMessage()}\n{fault}" if fault else record.getMessage())


@contextlib.contextmanager
def warnings_logged():
    handler = Records()
    logger = logging.getLogger("npugx_cache")
    logger.addHandler(handler)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)


def run(program):
    from npugx_cache import cache_compile

    made = []

    def cached(target, **arguments):
        if "NPUGX_TEST_BACKEND" in os.environ:
            arguments.setdefault("backend", os.environ["NPUGX_TEST_BACKEND"])
        result = cache_compile(target, **arguments)
        made.append(result.forward if isinstance(result, torch.nn.Module) else result)
        return result

    plain = None
    if "NPUGX_TEST_ONLY_CACHED" not in os.environ:  # eager may load a compiler, as torch.cond does
        with torch.no_grad():
            plain = program(lambda target, **_: target)
    before = {name for name in COMPILERS if name in sys.modules}
    with warnings_logged() as lines:
        got = program(cached)
    loaded = [name for name in COMPILERS if name in sys.modules and name not in before]
    infos = [m.cache_info() for m in made] + [
        state.counters.info(0) for m in made for _, state in m._bound.values()
    ]
    return {
        "difference": None if plain is None else difference(plain, got),
        "digest": digest(got),
        "hits": sum(i.hits for i in infos),
        "misses": sum(i.misses for i in infos),
        "bypasses": sum(i.bypasses for i in infos),
        "reasons": [str(r) for m in made for r in m.explain()],
        "warnings": lines,
        "loaded": loaded,
    }


def main(folder, *wanted):
    sys.path.insert(0, folder)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    results = {}
    for module, _, name in (text.partition(":") for text in wanted):
        programs = importlib.import_module(module).PROGRAMS
        for each in [name] if name else programs:
            try:
                results[f"{module}:{each}"] = run(programs[each])
            except Exception:
                results[f"{module}:{each}"] = {"difference": traceback.format_exc()}
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
