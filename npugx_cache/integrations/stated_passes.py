"""Names the passes of an engine for a key, where the user says what they depend on.

A pass is code with state that may read anything, so nothing in a process tells whether it would do
the same in another one. With `NPUGX_CACHE_ENGINE_PASSES=store` the user states that the passes
depend on the following alone, and the key has all of it:

- each file of Python code, and each compiled module by name and size, of the packages that define
  the passes, and of the engine;
- the hash that the engine makes of its configuration for a compiler;
- the engine's environment variables (`config.engine_environment`);
- the plain values that a pass had for attributes when it was first met, before a run changed them.

What the name does not have: code that somebody patched after it was loaded, and what a pass reads
from elsewhere. Its user answers for that.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npugx_cache import config
from npugx_cache.portable import NotPortable, digest, is_covered_class, module_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ENGINES = ("vllm", "sglang")
_PLAIN = (type(None), bool, int, float, str)
_LOADED = time.time()
"""A file that changed later may not be the code that is loaded."""


def name_of(managers: Sequence[Any], configuration: str) -> str:
    """The name of what an engine's passes do. Raises `NotPortable` if no file has their code."""
    passes = [each for manager in managers for each in (manager, *_inside(manager))]
    packages = {name for each in passes for name in _packages_of(type(each))}
    packages |= {name for name in _ENGINES if name in sys.modules}
    return digest(
        [
            configuration,
            repr(config.engine_environment()),
            *(f"{name} {_code_of(name)}" for name in sorted(packages)),
            *map(_first_state, passes),
        ]
    )


def _inside(manager: Any) -> list[Any]:
    held = getattr(manager, "__dict__", {}).get("passes")
    return held if isinstance(held, list) else []


def _packages_of(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        if not is_covered_class(base):
            yield module_of(base).partition(".")[0]


@functools.cache
def _code_of(package: str) -> str:
    """The digest of the files of a package or of a module that stands alone."""
    module = sys.modules.get(package)
    folders = [Path(each) for each in getattr(module, "__path__", ())]
    alone = getattr(module, "__file__", None)
    files = [file for folder in folders for file in folder.rglob("*")] or [Path(alone or "")]
    rows = [row for file in sorted(files) for row in _rows_of(file)]
    if not rows:
        raise NotPortable(f"the code of {package}, which defines a pass, is in no file")
    return digest(rows)


def _rows_of(file: Path) -> Iterator[str]:
    if file.suffix not in (".py", ".so", ".pyd") or not file.is_file():
        return
    found = file.stat()
    if found.st_mtime > _LOADED:
        raise NotPortable(f"{file.name} changed after this process had started")
    name = "/".join(file.parts[-3:])
    is_code = file.suffix == ".py"
    text = hashlib.sha256(file.read_bytes()).hexdigest() if is_code else str(found.st_size)
    yield f"{name} {text}"


_states: dict[int, tuple[Any, str]] = {}
"""By the id of a pass, which is kept alive: class and plain attributes when it was first met."""


def _first_state(each: Any) -> str:
    if id(each) not in _states:
        plain = {k: v for k, v in getattr(each, "__dict__", {}).items() if type(v) in _PLAIN}
        kind = type(each)
        text = f"{kind.__module__}.{kind.__qualname__} {sorted(plain.items())!r}"
        _states[id(each)] = each, text
    return _states[id(each)][1]
