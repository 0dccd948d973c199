"""`npugx-cache triage`: runs a program stage by stage, and says which layer is at fault.

No stage uses the cache of the user: a folder of its own, which is removed at the end, holds the
stores and the results that are compared.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from npugx_cache import config
from npugx_cache.cli import output, triage_report
from npugx_cache.cli.opening import WrongInput
from npugx_cache.cli.triage_stages import TITLES, Ended, Stage, judge_stage
from npugx_cache.cli.triage_verdict import Verdict, first_line, verdict
from npugx_cache.triage import events
from npugx_cache.triage.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npugx_cache.triage.plan import Way


class Asked(NamedTuple):
    """What the user asked for."""

    target: str
    arguments: tuple[str, ...]
    inputs: str | None
    calls: int
    seed: int
    timeout: float
    out: str
    save_inputs: bool
    all_stages: bool


def print_triage(asked: Asked, form: str) -> bool:
    """Triage, tell, and write the folder; whether all stages agree and are cached."""
    folder = triage_report.prepare_folder(asked.out, [asked.target, asked.inputs or asked.target])
    scratch = Path(tempfile.mkdtemp(prefix="npugx-cache-triage-"))
    try:
        run = _Triage(asked, folder, scratch, told=form != "json")
        report = run.report()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if form == "json":
        output.print_json(report)
    return bool(report["agree"])


class _Triage:
    def __init__(self, asked: Asked, folder: Path, scratch: Path, *, told: bool) -> None:
        self._asked, self._folder, self._scratch, self._told = asked, folder, scratch, told
        self._stages: list[Stage] = []
        self._eager: list[dict[str, Any]] = []
        self._about: dict[str, Any] = {}

    def report(self) -> dict[str, Any]:
        for way in self._ways():
            stage = self._run(way)
            self._stages.append(stage)
            self._tell(stage)
        if (self._scratch / "stores" / "cold").is_dir():
            triage_report.write_entries(self._folder, self._scratch / "stores" / "cold")
        bad = next((stage for stage in self._stages if not stage.good), None)
        found = self._bisect_passes(bad) if bad is not None else {}
        if bad is not None:
            triage_report.write_program(self._folder, self._plan(bad.way), bad, self._about)
        judgement = verdict(self._stages, found, self._about, self._asked.out)
        report = triage_report.as_json(self._stages, judgement, self._about, self._folder)
        inputs = {str(e["call"]): e["inputs"] for e in self._eager if e["event"] == "inputs"}
        triage_report.write(self._folder, self._plan("eager"), report, inputs)
        self._say(judgement)
        return report

    def _ways(self) -> Iterator[Way]:
        """The stages in their order, up to the first finding, which the later ones contain."""
        yield "eager"
        if not self._stages[0].good:
            self._refuse_what_did_not_start(self._stages[0])
            return
        self._about = next(
            {name: event[name] for name in ("backend", "options", "dynamic")}
            for event in self._eager
            if event["event"] == "end"
        )
        yield "eager again"
        if self._stages[-1].kind == "inputs":
            return
        for way in self._after_eager():
            yield way
            stage = self._stages[-1]
            if not stage.good and not self._asked.all_stages:
                if way == "dynamo" and stage.kind == "raised":
                    yield "cold"  # the cache says in fewer words why a call can't be traced
                return

    def _after_eager(self) -> Iterator[Way]:
        """The other stages; those that would do the same as another are left out."""
        yield "dynamo"
        yield "aot_eager"
        if self._about["backend"] != "aot_eager":
            yield "traced"
            if self._about["options"].get("force_eager") != "True":
                yield "passes"
        yield "cold"
        yield "restored"

    def _refuse_what_did_not_start(self, eager: Stage) -> None:
        if eager.kind == "wrong target":
            raise WrongInput(eager.detail)
        if eager.kind == "failed" and not self._eager:
            log = f"{self._asked.out}/{eager.log}"
            raise WrongInput(f"{self._asked.target} does not start: {eager.detail}; see {log}")

    def _run(self, way: Way, at_fault: int = 0) -> Stage:
        number = len(self._stages) + 1
        plan = self._plan(way, at_fault)
        file = self._scratch / f"{number}.json"
        plan.write(file)
        log = self._folder / "logs" / f"{number}-{way.replace(' ', '-')}.log"
        ended = self._process(file, log)
        happened = events.read(Path(plan.events))
        stage = judge_stage(
            way, happened, ended, str(log.relative_to(Path(self._folder))), self._eager
        )
        if way == "eager":
            self._eager = [event for event in happened if event["event"] != "done"]
            if stage.good and not stage.seconds:
                raise WrongInput(f"{self._asked.target} calls no cached function")
        return stage

    def _process(self, plan: Path, log: Path) -> Ended:
        changes = {
            # What the program decorates uses no store; the stages have stores of their own.
            "NPUGX_CACHE": "off",
            "NPUGX_CACHE_DIR": str(self._scratch / "unused"),
            "XDG_STATE_HOME": str(self._scratch / "state"),
        }
        environment = config.environment_with(**changes)
        environment.setdefault("NPUGX_CACHE_LOG", "info")
        with log.open("wb") as out:
            process = subprocess.Popen(  # noqa: S603 - this very package
                [*triage_report.python(), str(plan)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(self._asked.timeout)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)  # with what it started
                process.wait()
        lines = log.read_text(errors="replace").strip().splitlines()
        return Ended(code, output.in_line(lines[-1]) if lines else "it says nothing")

    def _plan(self, way: Way, at_fault: int = 0) -> Plan:
        asked = self._asked
        return Plan(
            way=way,
            target=asked.target,
            arguments=asked.arguments,
            inputs=asked.inputs,
            calls=asked.calls,
            seed=asked.seed,
            scratch=str(self._scratch),
            events=str(self._scratch / f"{way}.jsonl"),
            folder=str(self._folder),
            save_inputs=asked.save_inputs,
            at_fault=at_fault,
        )

    def _bisect_passes(self, bad: Stage) -> dict[str, Any]:
        """The pass at fault, and the program that shows this; {} if no pass is at fault."""
        runs_passes = self._about.get("backend") not in {"aot_eager", "inductor", "ge"}
        ran = [stage.way for stage in self._stages]
        suspected = "passes" if "passes" in ran else "cold"
        if bad.way != suspected or bad.kind in {"uncached", "missed"} or not runs_passes:
            return {}
        stage = self._run("bisect", bad.call or 0)
        happened = events.read(self._scratch / "bisect.jsonl")
        found: dict[str, Any] = {}
        for event in happened:
            if event["event"] == "fault":
                found |= event
            elif event["event"] == "program":
                found |= {"shows": event["shows"], "nodes": event["nodes"]}
        if not found and stage.kind in {"crashed", "timed out"}:
            found = _running(happened, stage)
        self._tell(stage._replace(kind="found" if found else "none", detail=found.get("name", "")))
        return found

    def _tell(self, stage: Stage) -> None:
        if not self._told:
            return
        times = ""
        if stage.seconds:
            times = f"first {stage.seconds[0]:.2g} s"
            times += f", last {stage.seconds[-1]:.2g} s" if stage.seconds[1:] else ""
        detail = first_line(stage.detail)
        if stage.replays:
            detail = f"{output.count(stage.replays, 'replay', 'replays')} {detail}".rstrip()
        line = f"{TITLES[stage.way]:<36}{stage.kind:<11}{times:<32}{detail}".rstrip()
        width = shutil.get_terminal_size().columns if output.on_terminal() else len(line)
        click.echo(line[:width])

    def _say(self, judgement: Verdict) -> None:
        if self._told:
            click.echo()
            click.echo(f"Layer: {judgement.layer or 'none, all agree'}")
            click.echo(output.in_line(judgement.said))
            click.echo(f"Next step: {output.in_line(judgement.next_step)}")
            click.echo(f"Written to {output.in_line(self._asked.out)}: report.md and the logs")


def _running(happened: Sequence[dict[str, Any]], stage: Stage) -> dict[str, Any]:
    """The pass that ran, or whose graph ran, when the process ended."""
    names = [event["name"] for event in happened if event["event"] in {"pass", "running"}]
    return {"name": names[-1], "raises": True, "detail": stage.detail} if names else {}
