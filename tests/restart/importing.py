"""Functions that import inside, each called twice: `python importing.py yes|no`; prints JSON.

The modules are beside the working directory's copies. For each function: what it gave, or the type
of what it raised; hits, misses, bypasses; and which of the modules were imported in the end.
"""

import json
import sys
from pathlib import Path

import torch

from npugx_cache import cache_compile

sys.path.insert(0, str(Path.cwd()))
FLAG = sys.argv[1] == "yes"


def of_a_module(x):
    if FLAG:
        import late_module

        return x * late_module.FACTOR
    return x + 1


def of_a_name(x):
    if FLAG:
        from late_names import scale

        return scale(x)
    return x + 1


def of_a_package(x):
    if FLAG:
        import late_package.inner

        return x * late_package.inner.FACTOR
    return x + 1


def from_a_package(x):
    if FLAG:
        from late_other import inner

        return x * inner.FACTOR
    return x + 1


def of_pythons_own(x):
    if FLAG:
        import wave

        return x * (wave.WAVE_FORMAT_PCM + 6)
    return x + 1


def in_order(x):
    if FLAG:
        import late_zulu  # isort: skip
        import late_alpha  # isort: skip

        return x * late_alpha.FACTOR + late_zulu.FACTOR
    return x + 1


def behind_a_question(x):
    if FLAG:
        import late_caps

        if late_caps.HAS_MORE:
            import late_more

            return x * late_more.FACTOR
        return x + 100
    return x + 1


def main():
    rows = {}
    for function in FUNCTIONS:
        cached, gave = cache_compile(function), []
        for _ in range(2):
            try:
                gave.append(cached(torch.ones(2))[0].item())
            except Exception as error:
                gave.append(type(error).__name__)
        rows[function.__name__] = [gave, list(cached.cache_info()[:3])]
    late = [name for name in sys.modules if name.startswith(("late_", "wave"))]
    print(json.dumps({"rows": rows, "imported": sorted(late)}))


FUNCTIONS = (
    *(of_a_module, of_a_name, of_a_package, from_a_package, of_pythons_own),
    *(in_order, behind_a_question),
)


if __name__ == "__main__":
    main()
