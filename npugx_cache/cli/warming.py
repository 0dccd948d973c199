"""`npugx-cache warm`: fills the cache by a process that it starts, and says what was not stored.

That process and its children have a state folder of their own, so the journal there has their
lookups and no others.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from npugx_cache import config
from npugx_cache.cli import output
from npugx_cache.cli.opening import Failure, load_settings
from npugx_cache.store import NOT_STORED, Journal, Unusable, open_folder
from npugx_cache.store.upkeep.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from npugx_cache.config import Settings
    from npugx_cache.store import FolderStore, JournalLine

_LEAST_RECOMPILES = 16
_REMOVED = "removed again at once, to keep a limit of the folder"


class Asked(NamedTuple):
    """What the user asked for."""

    target: str
    arguments: tuple[str, ...]
    inputs: tuple[str, ...]
    directory: str | None

    @property
    def is_script(self) -> bool:
        return self.target.endswith(".py")


class _Came(NamedTuple):
    """What one lookup came to. `detail` are the inputs of what is stored, else the reason."""

    outcome: Literal["stored", "refused", "not stored"]
    function: str
    detail: str
    entry: str = ""
    seconds: float = 0.0


def print_warm(asked: Asked, form: str) -> str | None:
    """Warm and tell; why the cache lacks something afterwards, or None."""
    settings = load_settings(asked.directory)
    if settings.mode != "on":
        raise Failure(
            f"NPUGX_CACHE={settings.mode} forbids changes to the cache; unset it to go on"
        )
    opened = open_folder(settings)
    if isinstance(opened, Unusable):
        raise Failure(opened.reason)
    if opened.readonly is not None:
        raise Failure(f"{opened.root} is read-only: {opened.readonly}")
    with tempfile.TemporaryDirectory(prefix="npugx-cache-warm-") as state:
        code = _run(asked, settings, state)
        if code == 2 and not asked.is_script:
            raise click.exceptions.Exit(2)  # the process has said what is wrong
        came, found, elsewhere = _read(settings, opened, config.state_folder_in(state))
    faults = list(_faults(asked, code, came, found, elsewhere))
    if form == "json":
        _print_json(settings, came, found, faults)
    else:
        _print(settings, came, found)
    return "; ".join(faults) or None


def _run(asked: Asked, settings: Settings, state: str) -> int:
    """Run the program; what it prints goes to stderr. The exit code is negative after a signal."""
    changes = {
        "NPUGX_CACHE_DIR": str(settings.cache_dir),
        "XDG_STATE_HOME": state,
        # As set for workers, these would forbid to compile, or end the program at a refusal.
        "NPUGX_CACHE_ON_MISS": "compile",
        "NPUGX_CACHE_RECOMPILE_LIMIT": str(max(settings.recompile_limit, _LEAST_RECOMPILES)),
        "NPUGX_CACHE_STRICT": "0",
    }
    environment = config.environment_with(**changes)
    if sys.stderr.isatty():
        environment.setdefault("NPUGX_CACHE_LOG", "info")
    program = [asked.target, *asked.arguments]
    if not asked.is_script:
        program = ["-m", "npugx_cache.warming", asked.target, *asked.inputs]
    command = [sys.executable, *program]
    return subprocess.run(  # noqa: S603 - what the user named
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment, check=False
    ).returncode


def _read(settings: Settings, store: FolderStore, state: Path) -> tuple[list[_Came], int, bool]:
    """What lookups came to, how many were hits, and whether another folder was used."""
    root = str(settings.cache_dir)
    lines = Journal(root, state).load()
    columns = store.overview()[0].columns
    entries, kinds = columns.texts("entry"), columns.texts("kind")
    inputs = dict(zip(entries, columns.texts("signature"), strict=True))
    notes = {e for e, kind in zip(entries, kinds, strict=True) if kind != "graph"}
    uses = Usage(root, state).load()
    hits = sum(use.hits for entry, use in uses.items() if entry not in notes)
    came = list(dict.fromkeys(_outcome_of(line, inputs) for line in reversed(lines)))
    return came, hits, _elsewhere(settings, state)


def _outcome_of(line: JournalLine, inputs: dict[str, str]) -> _Came:
    if line.outcome == "bypass":
        return _Came("refused", line.function, line.reasons[0] if line.reasons else "")
    if line.stored in inputs:
        found = inputs[line.stored]
        return _Came("stored", line.function, found, line.stored, line.seconds)
    if line.stored:
        return _Came("not stored", line.function, _REMOVED)
    said = [r for r in line.reasons if r.startswith(f"{NOT_STORED}: ")] or [*line.reasons, ""]
    return _Came("not stored", line.function, said[0].removeprefix(f"{NOT_STORED}: "))


def _elsewhere(settings: Settings, state: Path) -> bool:
    """Whether functions with a `cache_dir` of their own were called."""
    folders = [settings.cache_dir, *settings.baked_dirs]
    folders += [] if settings.local_dir is None else [settings.local_dir]
    known = {Journal(str(folder), state).folder.name for folder in folders}
    used = (path for kind in ("journal", "usage") for path in state.glob(f"{kind}/*"))
    return any(path.name not in known for path in used)


def _faults(
    asked: Asked, code: int, came: Sequence[_Came], hits: int, elsewhere: bool
) -> Iterator[str]:
    if code:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        yield f"{asked.target} ended with {how}"
    refused = sum(each.outcome == "refused" for each in came)
    if refused:
        yield f"{output.count(refused, 'call is', 'calls are')} refused"
    lost = sum(each.outcome == "not stored" for each in came)
    if lost:
        yield f"{output.count(lost, 'graph is', 'graphs are')} not stored"
    if elsewhere:
        yield "functions with a cache_dir of their own use another folder"
    elif not came and not hits and not code:
        yield f"{asked.target} calls no cached function"


def _print(settings: Settings, came: Sequence[_Came], hits: int) -> None:
    for each in came:
        took = f" ({output.seconds(each.seconds)})" if each.outcome == "stored" else ""
        click.echo(f"{each.outcome} {output.in_line(f'{each.function}: {each.detail}')}{took}")
    stored = [each for each in came if each.outcome == "stored"]
    seconds = output.seconds(sum(each.seconds for each in stored))
    click.echo(
        f"{output.count(len(stored), 'graph', 'graphs')} compiled in {seconds}, "
        f"{output.count(hits, 'lookup', 'lookups')} found a graph, "
        f"in {output.in_line(str(settings.cache_dir))}"
    )


def _print_json(
    settings: Settings, came: Sequence[_Came], hits: int, faults: Sequence[str]
) -> None:
    def of(outcome: str) -> list[_Came]:
        return [each for each in came if each.outcome == outcome]

    output.print_json(
        {
            "root": str(settings.cache_dir),
            "hits": hits,
            "stored": [
                {
                    "function": each.function,
                    "inputs": each.detail,
                    "entry": each.entry,
                    "seconds": each.seconds,
                }
                for each in of("stored")
            ],
            "refused": [{"function": e.function, "reason": e.detail} for e in of("refused")],
            "not_stored": [{"function": e.function, "reason": e.detail} for e in of("not stored")],
            "faults": list(faults),
        }
    )
