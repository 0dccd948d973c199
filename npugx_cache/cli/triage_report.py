"""Writes the folder of a triage that people attach to an issue."""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npugx_cache import config
from npugx_cache.cli import output, versions
from npugx_cache.cli.opening import Failure, WrongInput, open_existing
from npugx_cache.cli.triage_stages import TITLES
from npugx_cache.errors import NpugxCacheError
from npugx_cache.triage.plan import is_script
from npugx_cache.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npugx_cache.cli.triage_stages import Stage
    from npugx_cache.cli.triage_verdict import Verdict
    from npugx_cache.triage.plan import Plan

_OWN = "triage.json"
_WHAT = {"what": "a triage of npugx-cache"}
_WRITTEN = re.compile(
    r"(triage\.json|report\.md|program\.py|(program_)?inputs\.pt"
    r"|logs(/(entries|\d+-[a-z_-]+)\.log)?|entries(/[0-9a-f]{12}\.py)?"
    r"|graphs(/(before|after)_\w+\.txt)?)"
)


def prepare_folder(path: str, read: Iterable[str]) -> Path:
    """The folder, empty of what an earlier triage wrote; WrongInput if it holds anything else.

    `read`: the files that the program is made from.
    """
    folder = Path(path).resolve()
    try:
        if folder.exists():
            _check_replaceable(path, folder, read)
            for each in folder.iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        (folder / "logs").mkdir(parents=True)
        (folder / _OWN).write_text(json.dumps(_WHAT))
    except OSError as error:
        raise Failure(f"--out {output.in_line(path)}: {error.strerror}") from None
    return folder


def _check_replaceable(path: str, folder: Path, read: Iterable[str]) -> None:
    shown = output.in_line(path)
    for file in read:
        if Path(file).resolve().is_relative_to(folder):
            named = output.in_line(file)
            raise WrongInput(f"{named} lies in --out {shown}, which is replaced. Name another")
    own = _is_own(folder / _OWN)
    for each in folder.rglob("*") if own else folder.iterdir():
        name = str(each.relative_to(folder))
        if not own or each.is_symlink() or not _WRITTEN.fullmatch(name):
            raise WrongInput(
                f"--out {shown} holds other files: {output.in_line(name)}. "
                "Name a folder that is new or empty"
            )


def _is_own(file: Path) -> bool:
    try:
        return bool(_WHAT.items() <= json.loads(file.read_text()).items())
    except (FileNotFoundError, ValueError, AttributeError):
        return False


def as_json(
    stages: Sequence[Stage], verdict: Verdict, about: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    return {
        **_WHAT,
        "agree": not verdict.layer,
        "verdict": verdict._asdict(),
        "stages": [stage._asdict() for stage in stages],
        "options": about,
        "versions": found_versions(),
        "environment": config.steering_environment(),
        "folder": str(folder),
    }


def write(
    folder: Path, plan: Plan, report: Mapping[str, Any], inputs: Mapping[str, Mapping[str, str]]
) -> None:
    (folder / _OWN).write_text(json.dumps(report, indent=2) + "\n")
    (folder / "report.md").write_text("\n".join(_lines(plan, report, inputs)) + "\n")


def found_versions() -> dict[str, str | None]:
    torch = versions.installed_torch()
    return {
        "npugx_cache": VERSION,
        "python": platform.python_version(),
        "torch": None if torch is None else torch.version,
        "torch_npu": versions.installed_torch_npu(),
        "platform": platform.platform(),
    }


def _lines(
    plan: Plan, report: Mapping[str, Any], inputs: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    verdict = report["verdict"]
    yield f"# Triage of {output.in_line(plan.target)}"
    yield ""
    yield f"**{verdict['layer'] or 'no finding'}**: {output.in_line(verdict['said'])}"
    yield f"Next step: {output.in_line(verdict['next_step'])}"
    yield ""
    yield "| stage | outcome | seconds of each call | detail | log |"
    yield "|---|---|---|---|---|"
    for stage in report["stages"]:
        seconds = ", ".join(f"{each:.3g}" for each in stage["seconds"])
        detail = output.in_line(stage["detail"]).replace("|", "\\|")
        call = "" if stage["call"] is None else f"call {stage['call'] + 1}: "
        shown = f"{call}{detail}" if detail else ""
        yield f"| {TITLES[stage['way']]} | {stage['kind']} | {seconds} | {shown} | {stage['log']} |"
    given: dict[str, Mapping[str, str]] = {}
    for number, rows in inputs.items():
        if rows not in given.values():
            given[f"Inputs of call {int(number) + 1}"] = rows
    for title, rows in (
        ("How it was called", {"target": plan.target, "inputs": plan.inputs, "seed": plan.seed}),
        ("Options", report["options"]),
        ("Versions", report["versions"]),
        ("Environment", report["environment"]),
        *given.items(),
    ):
        yield f"\n## {title}\n"
        yield from (f"- `{name}`: `{output.in_line(str(value))}`" for name, value in rows.items())


def write_entries(folder: Path, store: Path) -> None:
    """Write the text of each stored entry to a file."""
    from npugx_cache.entry.readable import readable_cache

    try:
        opened = open_existing(str(store), "readonly")
        listed = opened.overview()[0].columns.texts("entry") if opened is not None else []
        (folder / "entries").mkdir()
        for entry in listed:
            file = folder / "entries" / f"{entry[:12]}.py"
            readable_cache(entry, print_output=False, file=file, cache_dir=store)
    except (click.ClickException, NpugxCacheError) as error:
        (folder / "logs" / "entries.log").write_text(f"{error}\n")


_PROGRAM = '''"""Compares a callable in eager and by {how}. Run it: `python program.py`.

Made by `npugx-cache triage`. Exits with 1 if the results differ, else with 0.
"""

import copy
import os
import sys
from functools import reduce
from importlib import import_module

os.environ["NPUGX_CACHE"] = "off"
import torch

sys.path.insert(0, {cwd!r})


def named(text):
    module, _, path = text.partition(":")
    return reduce(getattr, path.split("."), import_module(module))


target = named({target!r})
target = getattr(target, "__wrapped__", target)
if isinstance(target, torch.nn.Module) and hasattr(target.forward, "__wrapped__"):
    target.forward = target.forward.__wrapped__


def inputs(seed):
    torch.manual_seed(seed)
    value = {inputs}
    value = value() if callable(value) else copy.deepcopy(value)
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict):
        return tuple(value[0]), value[1]
    return (value if isinstance(value, tuple) else (value,)), {{}}


def run(function, seed):
    args, kwargs = inputs(seed)
    torch.manual_seed(seed)
    return function(*args, **kwargs), args, kwargs


with torch.no_grad():
    compiled = torch.compile(target, backend={backend!r}, fullgraph=True, dynamic={dynamic})
    for seed in range({seed}, {seed} + {calls}):
        try:
            expected = run(target, seed)
            torch.testing.assert_close(run(compiled, seed), expected, equal_nan=True)
        except Exception as error:
            print(f"{{type(error).__name__}}: {{error}}")
            sys.exit(1)
print("the results are equal")
'''


def write_program(folder: Path, plan: Plan, bad: Stage, about: Mapping[str, Any]) -> None:
    """Write a program without npugx_cache in it that shows a fault of torch's."""
    if bad.way not in {"dynamo", "aot_eager"} or is_script(plan.target):
        return
    backend = "eager" if bad.way == "dynamo" else "aot_eager"
    given = plan.inputs or ""
    inputs = f"named({given!r})" if given else "()"
    if given.endswith(".pt"):
        inputs = f"torch.load({str(Path(given).absolute())!r}, weights_only=True)"
    (folder / "program.py").write_text(
        _PROGRAM.format(
            target=plan.target,
            how=TITLES[bad.way],
            cwd=str(Path.cwd()),
            inputs=inputs,
            backend=backend,
            dynamic=bool(dynamic) if (dynamic := about.get("dynamic")) is not None else None,
            seed=plan.seed,
            calls=plan.calls,
        ),
        encoding="utf-8",
    )


def python() -> list[str]:
    """The interpreter of a stage: a crash leaves a stack in its log."""
    return [sys.executable, "-X", "faulthandler", "-m", "npugx_cache.triage"]
