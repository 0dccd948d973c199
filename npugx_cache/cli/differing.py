"""`npugx-cache diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from npugx_cache.cli import output
from npugx_cache.cli.naming import entry_meant
from npugx_cache.cli.opening import Failure, WrongInput, open_existing
from npugx_cache.conditions import differences as of_conditions
from npugx_cache.entry.artifact import CONDITIONS, conditions_of, other_release
from npugx_cache.errors import CorruptEntry
from npugx_cache.key import fingerprint
from npugx_cache.store import Miss

if TYPE_CHECKING:
    from npugx_cache.conditions import Conditions
    from npugx_cache.store import FolderStore, Manifest

_SHOWN_DIGITS = 12
_SHOWN_CONDITIONS = 40


class EntryDifference(NamedTuple):
    """How one entry differs from another: in its key and function, and in its conditions."""

    factors: list[str]
    conditions: of_conditions.Differences

    @property
    def empty(self) -> bool:
        return not self.factors and not any(self.conditions)


NO_DIFFERENCE = "no difference in the key, and none in what can be compared of the conditions"


def difference(store: FolderStore, a: Manifest, b: Manifest) -> EntryDifference:
    """How the entry `b` differs from `a`. Raises Failure if one of them is damaged."""
    factors = [*_about(a, b), *fingerprint.differences(a.factors, b.factors)]
    before, after = _conditions(store, a), _conditions(store, b)
    found = of_conditions.Differences((), (), ())
    if before is not None and after is not None:
        try:
            found = of_conditions.between(before, after)
        except (LookupError, TypeError, ValueError) as error:
            ids = " or ".join(each.entry[:_SHOWN_DIGITS] for each in (a, b))
            raise Failure(f"the conditions of {ids} make no sense: {error!r}") from None
    return EntryDifference(factors, found)


def print_diff(first: str, second: str, directory: str | None, form: str) -> None:
    store = open_existing(directory, "readonly")
    if store is None:
        raise WrongInput(f"{first}: there is no cache yet. Name another one with --dir")
    overview, _ = store.overview()
    a, b = (_find_manifest(store, entry_meant(name, overview)) for name in (first, second))
    differing = difference(store, a, b)
    factors, found = differing
    if form == "json":
        names = {"first": a.entry, "second": b.entry}
        conditions = {name: list(texts) for name, texts in found._asdict().items()}
        output.print_json({**names, "factors": factors, "conditions": conditions})
        return
    ids = [each.entry[:_SHOWN_DIGITS] for each in (a, b)]
    _print_part("key and function", factors)
    _print_part("conditions", found.changed)
    _print_part(f"conditions of {ids[0]} alone", found.only_first)
    _print_part(f"conditions of {ids[1]} alone", found.only_second)
    if differing.empty:
        click.echo(NO_DIFFERENCE)


def _find_manifest(store: FolderStore, entry: str) -> Manifest:
    manifest = store.find(entry)
    if isinstance(manifest, Miss):
        raise WrongInput(f"{manifest.reason}. `npugx-cache ls` shows what there is")
    return manifest


def _about(a: Manifest, b: Manifest) -> list[str]:
    """What differs outside of the key: the kinds of the entries, and why calls are bypasses."""
    rows = {"kind": (str(a.kind), str(b.kind))}
    rows["reason"] = str(a.about.get("reason", "-")), str(b.about.get("reason", "-"))
    return [f"{name} was {was}, is {now}" for name, (was, now) in rows.items() if was != now]


def _conditions(store: FolderStore, manifest: Manifest) -> Conditions | None:
    """The conditions of an entry; None for one without, such as a package of kernels.

    Also None for an entry of another release, whose conditions may mean something else here.
    """
    if all(ref.name != CONDITIONS for ref in manifest.blobs) or other_release(manifest.factors):
        return None
    blobs = store.read(manifest, [CONDITIONS])
    if isinstance(blobs, Miss):
        raise Failure(f"entry {manifest.entry[:_SHOWN_DIGITS]}: {blobs.reason}")
    try:
        return conditions_of(blobs)
    except CorruptEntry as error:
        raise Failure(f"entry {manifest.entry[:_SHOWN_DIGITS]}: {error}") from None


def _print_part(title: str, texts: list[str] | tuple[str, ...]) -> None:
    if not texts:
        return
    click.echo(f"{title}:")
    for text in texts[:_SHOWN_CONDITIONS]:
        click.echo(f"  {output.in_line(text)}")
    if len(texts) > _SHOWN_CONDITIONS:
        click.echo(f"  and {len(texts) - _SHOWN_CONDITIONS} more: --format json shows all")
