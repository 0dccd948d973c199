"""A worker that meets an entry whose conditions can't be evaluated; prints JSON.

The entry is published through the store, so that it is whole and trusted in every other respect.
"""

import json
import logging

import msgpack
import torch

from npugx_cache import cache_compile, config, store
from npugx_cache.entry.artifact import CONDITIONS

CALLS = 20


def function(x, k=1.5):
    return x * k


def replace_with_odd(opened):
    (row,) = opened.listing()
    manifest = row.manifest
    blobs = dict(opened.read(manifest, [ref.name for ref in manifest.blobs]))
    conditions = msgpack.unpackb(blobs[CONDITIONS], raw=False)
    conditions["tensors"] = []  # the checks name the first of them
    blobs[CONDITIONS] = msgpack.packb(conditions, use_bin_type=True)
    (opened.root / "v1/ac" / manifest.key[:2] / manifest.key / manifest.entry).unlink()
    opened.publish(
        store.Draft(
            key=manifest.key,
            identity=manifest.identity,
            kind="graph",
            cost_seconds=1.0,
            factors=manifest.factors,
            about=manifest.about,
            blobs=blobs,
        )
    )


def main():
    cache_compile(function, dynamic=False)(torch.ones(3))
    opened = store.open_store(config.load())
    replace_with_odd(opened)
    errors = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(record.getMessage())
    logging.getLogger("npugx_cache").addHandler(handler)
    cached, x = cache_compile(function, dynamic=False), torch.ones(4)
    right = all(torch.equal(cached(x), function(x)) for _ in range(CALLS))
    second = cache_compile(function, dynamic=False)
    second(x)
    quarantined = [p for p in (opened.root / "v1/quarantine").iterdir() if p.suffix != ".reason"]
    return {
        "right": right,
        "errors": errors,
        "counts": cached.cache_info()[:4],
        "quarantined": len(quarantined),
        "second": second.cache_info()[:4],
    }


if __name__ == "__main__":
    print(json.dumps(main()))
