"""`python -m npugx_cache.warming TARGET INPUTS...`: exits with 2 where these name nothing.

The journal has what was refused, so that is no error here.
"""

from __future__ import annotations

import contextlib
import sys

from npugx_cache.counters import Warmed
from npugx_cache.errors import NpugxCacheError, Uncacheable
from npugx_cache.triage.targets import WrongTarget, cache_target, import_object
from npugx_cache.warming.inputs import calls, quote_text


def main(target: str, *inputs: str) -> int:
    try:
        _warm(target, inputs)
    except WrongTarget as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    except NpugxCacheError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


def _warm(target: str, inputs: tuple[str, ...]) -> None:
    found = cache_target(import_object(target))
    function = getattr(found, "forward", found)
    texts = [text for text in inputs if text.strip()]
    if not texts and function.warm() == Warmed():
        raise WrongTarget(f"{target} takes arguments: name them with --inputs")
    for text in texts:
        for args, kwargs in calls(text):
            try:
                with contextlib.suppress(Uncacheable):  # as strict=True raises it
                    function.warm(*args, **kwargs)
            except TypeError as error:  # as Python raises it for a call with other arguments
                raise WrongTarget(f"--inputs {quote_text(text)}: {error}") from error


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
