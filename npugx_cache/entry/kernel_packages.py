"""Stores packages of static kernels as entries, under the key of what they were compiled for.

A package is a program that must be run to install its kernels, so its origin matters. As an entry
it is verified before its bytes are used, and it is locked, signed, pruned, exported and moved like
a graph. Its key says nothing about the function, because many functions call operators with the
same shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npugx_cache import events, store
from npugx_cache.backend.static_kernels.packages import NoKernels
from npugx_cache.interpreter.work_time import WorkTime
from npugx_cache.key.fingerprint import Fingerprint
from npugx_cache.portable import digest
from npugx_cache.private import process_groups

if TYPE_CHECKING:
    from npugx_cache.backend.static_kernels.packages import Make, Packages
    from npugx_cache.backend.static_kernels.wanted import Wanted
    from npugx_cache.config import Settings

FORMAT = "1"
READABLE = "readable"
_IDENTITY = digest(["static kernels"])


@dataclass
class StoredPackages:
    """Looks up and stores packages in one store. Not safe for threads: the caller holds a lock."""

    settings: Settings
    _access: store.Access | None = None
    _said: set[str] = field(default_factory=set)

    def obtain(self, wanted: Wanted, make: Make) -> Packages | NoKernels:
        opened = self._open_store()
        if opened is None:
            return make()
        fingerprint = _fingerprint(wanted)
        found: list[Packages] = []

        def is_stored() -> bool:
            packages = self._read(opened, fingerprint.key)
            if packages is not None:
                found.append(packages)
            return bool(found)

        if is_stored():
            return found[0]
        name, wait = digest([fingerprint.key]), self.settings.lock_wait
        timeout = process_groups.shortest_timeout()
        with opened.lock(name, wait=wait, needed_within=timeout, done=is_stored):
            if found or is_stored():
                return found[0]
            worked = WorkTime()
            made = make()
            if not isinstance(made, NoKernels):
                _publish(opened, _draft(fingerprint, wanted, made, worked.seconds()))
            return made

    def _open_store(self) -> store.Store | None:
        if self._access is None:
            unusable = None
            if self.settings.trust == "group":
                unusable = store.Unusable(
                    "static kernels are machine code, which is stored under the trust modes "
                    "private and signed only, not under group",
                    "settings",
                )
            self._access = store.Access(self.settings, unusable)
        found = self._access.store()
        if not isinstance(found, store.Unusable):
            return found
        if self.settings.mode != "off":
            events.warn_once(f"static kernels not stored: {found.reason}")
        return None

    def _read(self, opened: store.Store, key: str) -> Packages | None:
        """The packages of the first entry under a key whose origin and bytes are verified."""
        candidates = opened.candidates(key)
        for refused in candidates.refused:
            self._say(refused.reason)
        for manifest in candidates.manifests:
            names = [ref.name for ref in manifest.blobs if ref.name.endswith(".run")]
            blobs = opened.read(manifest, names)
            if isinstance(blobs, store.Miss):
                self._say(blobs.reason)
            elif names:
                opened.record_hit(manifest)
                return blobs
        return None

    def _say(self, reason: str) -> None:
        if reason not in self._said:  # `_read` runs many times while another worker compiles
            self._said.add(reason)
            events.logger.warning("stored static kernels not used: %s", reason)


def _fingerprint(wanted: Wanted) -> Fingerprint:
    operators = digest(sorted(wanted.operators.digests))
    rows = (("format", FORMAT), ("operators", operators), *wanted.surroundings)
    return Fingerprint.of(rows)


def _draft(
    fingerprint: Fingerprint, wanted: Wanted, packages: Packages, seconds: float
) -> store.Draft:
    known = dict(wanted.surroundings)
    texts = b"".join(text.strip() + b"\n" for text in wanted.operators.texts.values())
    return store.Draft(
        key=fingerprint.key,
        identity=_IDENTITY,
        kind="kernels",
        cost_seconds=seconds,
        factors=fingerprint.factors,
        about={
            "function": "static kernels",
            "backend": "op_compiler",
            "signature": wanted.operators.words(),
            "signature_id": "",
            "environment": f"{known['npu.cann']} {known['npu.device']}",
        },
        blobs={**packages, READABLE: texts},
        uncompressed=frozenset(packages),
    )


def _publish(opened: store.Store, draft: store.Draft) -> None:
    answer = opened.publish(draft)
    if isinstance(answer, store.NotStored):
        level = events.logger.debug if opened.readonly else events.logger.warning
        level("static kernels not stored in %s: %s", opened.root, answer.reason)
