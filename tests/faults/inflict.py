"""Damage copies of a good store in many ways and call a cached function on each. Prints JSON.

python inflict.py fill STORE              make the good store
python inflict.py damage STORE FOLDER     every kind of damage to files, each on a copy in FOLDER
python inflict.py call STORE... [--uid=N] call on stores as they are, all but one as another user
python inflict.py vanish STORE            remove the store between two calls
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import traceback
from pathlib import Path

import torch

from npugx_cache import cache_compile
from npugx_cache.errors import NpugxCacheError

TABLE = torch.tensor([1.0, 2.0, 3.0])


def f(x):
    table = torch.tensor([3.0, 4.0, 5.0])
    return helper(x) + table * TABLE


def helper(x):
    return x.sin() * 2


def g(x):
    return x.cos() - torch.tensor([9.0, 8.0, 7.0])


def h(x):
    return x.tan() * TABLE[0]


class Records(logging.Handler):
    def __init__(self):
        super().__init__(logging.DEBUG)
        self.lines = []

    def emit(self, record):
        self.lines.append((record.levelname, record.getMessage()))


def call(store, function=f, *, strict=False, times=1):
    """Call a fresh cached function on a store; what came of it."""
    handler, logger = Records(), logging.getLogger("npugx_cache")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    cached, x = cache_compile(function, cache_dir=store, strict=strict), torch.arange(3.0)
    row = {"right": False, "raised": None}
    try:
        for _ in range(times):
            row["right"] = bool(torch.equal(cached(x), function(x)))
    except NpugxCacheError as error:
        row["raised"] = type(error).__name__, str(error)
    except Exception:
        row["raised"] = "other", traceback.format_exc()[-1500:]
    finally:
        logger.removeHandler(handler)
    info = cached.cache_info()
    reasons = [reason for refusal in cached.explain() for reason in refusal.reasons]
    row |= {"hits": info.hits, "misses": info.misses, "bypasses": info.bypasses}
    return row | {"stored": info.stored, "reasons": reasons, "log": handler.lines}


def entry_files(store):
    """The files of the entry, by what they hold."""
    manifests = [p for p in (store / "v1/ac").rglob("*") if p.is_file()]
    blobs = sorted(p for p in (store / "v1/cas").rglob("*") if p.is_file())
    names = {f"manifest{i}": path for i, path in enumerate(sorted(manifests))}
    return names | {f"blob{i}": path for i, path in enumerate(blobs)}


def flip(path, offset, bit):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    rewrite(path, bytes(data))


def rewrite(path, data):
    mode = path.stat().st_mode
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(mode)


def swap(files):
    blobs = [path for name, path in files.items() if name.startswith("blob")]
    contents = [path.read_bytes() for path in blobs]
    for path, data in zip(blobs, contents[1:] + contents[:1], strict=True):
        rewrite(path, data)


def damages(files):
    """(name, how): every kind of damage to one entry."""
    for name, path in files.items():
        size = path.stat().st_size
        for n in range(12):
            offset = min(size - 1, n * size // 11)
            yield f"{name} bit {offset}", lambda e, k=name, o=offset, n=n: flip(e[k], o, n % 8)
        for kept in (0, 1, size // 2, size - 1):
            yield (
                f"{name} truncated to {kept}",
                lambda e, k=name, n=kept: rewrite(e[k], e[k].read_bytes()[:n]),
            )
        yield f"{name} zeros", lambda e, k=name, n=size: rewrite(e[k], bytes(n))
        yield f"{name} longer", lambda e, k=name: rewrite(e[k], e[k].read_bytes() + b"more")
        yield f"{name} garbage", lambda e, k=name: rewrite(e[k], b"\xc1garbage" * 20)
        yield f"{name} deleted", lambda e, k=name: e[k].unlink()
        yield f"{name} a folder", lambda e, k=name: (e[k].unlink(), e[k].mkdir())
        yield f"{name} a dead link", lambda e, k=name: (e[k].unlink(), e[k].symlink_to("nowhere"))
        yield f"{name} unreadable", lambda e, k=name: e[k].chmod(0)
    yield "blobs swapped", swap
    yield "all blobs deleted", lambda e: [p.unlink() for n, p in e.items() if n[0] == "b"]


def damage(store, folder):
    rows = {}
    for number, (name, how) in enumerate(damages(entry_files(store))):
        copy = folder / f"copy{number}"
        shutil.copytree(store, copy, symlinks=True)
        copy.chmod(0o700)
        how(entry_files(copy))
        rows[name] = {"first": call(copy), "second": call(copy), "strict": None}
        shutil.rmtree(copy)
    return rows


def main(command, *arguments):
    logging.basicConfig(level=logging.CRITICAL)
    if command == "fill":
        result = call(Path(arguments[0]))
    elif command == "vanish":
        result = [call(Path(arguments[0]))]
        shutil.rmtree(arguments[0])
        result += [call(Path(arguments[0]), function) for function in (f, g)]
        cached, x = cache_compile(f, cache_dir=arguments[0], dynamic=False), torch.arange(3.0)
        right = [torch.equal(cached(x), f(x))]
        shutil.rmtree(arguments[0])
        right += [torch.equal(cached(y), f(y)) for y in (x, x.double(), x + 1)]
        shutil.rmtree(arguments[0], ignore_errors=True)
        Path(arguments[0]).write_text("in the way")
        right += [torch.equal(cached(y), f(y)) for y in (x[:1], x)]
        result.append(right)
    elif command == "damage":
        result = damage(Path(arguments[0]), Path(arguments[1]))
    else:
        stores = [Path(each) for each in arguments if not each.startswith("--")]
        if arguments[-1].startswith("--uid="):
            # The compiler is loaded first: its files may be out of the other user's reach.
            call(stores.pop(0))
            os.setgroups([])
            os.setgid(int(arguments[-1][6:]))
            os.setuid(int(arguments[-1][6:]))
        result = [
            {
                "f": call(store),
                "g": call(store, g, times=2),
                "strict": call(store, h, strict=True),
            }
            for store in stores
        ]
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
