"""Run every program plain and cached in this process and print what happened, as JSON."""

import json
import logging
import sys

import torch


def flatten(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [type(value).__name__, *[x for k, v in value.items() for x in [k, *flatten(v)]]]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *[x for v in value for x in flatten(v)]]
    if hasattr(value, "__dict__") and type(value).__module__.endswith("programs"):
        return [type(value).__name__, *flatten(vars(value))]
    return [value]


def same(left, right, exact):
    left, right = flatten(left), flatten(right)
    if len(left) != len(right):
        return f"{len(left)} values and {len(right)} values"
    for a, b in zip(left, right, strict=True):
        if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
            return f"{a!r} and {b!r}"
        if isinstance(a, torch.Tensor):
            meta = [(t.dtype, t.shape, t.stride(), t.requires_grad) for t in (a, b)]
            if meta[0] != meta[1]:
                return f"{meta[0]} and {meta[1]}"
            if not (torch.equal(a, b) if exact else torch.allclose(a, b)):
                return f"{a} and {b}"
        elif type(a) is not type(b) or a != b:
            return f"{a!r} and {b!r}"
    return None


def run(name, programs):
    from npugx_cache import cache_compile

    made = []

    def cached(target, **arguments):
        result = cache_compile(target, **arguments)
        made.append(result.forward if isinstance(result, torch.nn.Module) else result)
        return result

    with torch.no_grad():
        plain = programs.PROGRAMS[name](lambda target, **_: target)
    got = programs.PROGRAMS[name](cached)
    infos = [m.cache_info() for m in made] + [
        state.counters.info(0) for m in made for _, state in m._bound.values()
    ]
    return {
        "different": same(plain, got, exact=True),
        "hits": sum(i.hits for i in infos),
        "misses": sum(i.misses for i in infos),
        "bypasses": sum(i.bypasses for i in infos),
        "explanations": [str(r) for m in made for r in m.explain()],
    }


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    sys.path.insert(0, sys.argv[1])
    import importlib

    programs = importlib.import_module(sys.argv[2])
    names = sys.argv[3:] or list(programs.PROGRAMS)
    compilers = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "sympy")
    results = {}
    for name in names:
        try:
            results[name] = run(name, programs)
        except Exception as error:  # noqa: BLE001
            import traceback

            results[name] = {"error": traceback.format_exc(), "different": repr(error)}
        results[name]["loaded"] = [m for m in compilers if m in sys.modules]
    print(json.dumps(results))
