"""The recipes of examples/deploy, read as the programs read them that they are written for."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from containers import Engine, Image

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/deploy"


# A Dockerfile.


def instructions(path: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, in order, with continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [
        (name, rest)
        for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)
    ]


def build(engine: Engine, context: Path, path: Path, base: Image) -> dict[str, Image]:
    """Build each stage of a Dockerfile; every image from elsewhere is `base`."""
    stages: dict[str, Image] = {}
    image, stage = base, ""
    for name, rest in instructions(path):
        match name:
            case "FROM":
                origin, _, stage = rest.partition(" AS ")
                image = stages.get(origin, base)
            case "RUN":
                image = engine.build(image, ("/bin/sh", "-c", rest))
            case "COPY":
                *sources, target = rest.split()
                image = copy(engine, image, context, sources, target)
            case "ENV":
                pairs = dict(each.split("=", 1) for each in shlex.split(rest))
                image = replace(image, variables={**image.variables, **pairs})
            case "WORKDIR":
                image = engine.build(image, ("mkdir", "-p", rest))
                image = replace(image, folder=rest)
            case "USER":
                image = replace(image, user=rest if ":" in rest else "0:0")
            case "VOLUME":
                image = replace(image, volumes=(*image.volumes, rest))
            case "HEALTHCHECK":
                image = replace(image, health=tuple(json.loads(rest.partition(" CMD ")[2])))
            case "CMD":
                image = replace(image, command=tuple(json.loads(rest)))
            case "EXPOSE" | "ARG":
                pass
            case _:
                raise ValueError(f"nobody follows {name} {rest}")
        stages[stage] = image
    return stages


def copy(engine: Engine, image: Image, context: Path, sources: list[str], target: str) -> Image:
    """COPY: of a folder its content, of a file the file; the target belongs to root."""
    from containers import Mount

    folders = target.endswith("/") or any((context / each).is_dir() for each in sources)
    lines = [f"mkdir -p {target}"] if folders else []
    for source in sources:
        end = "/." if (context / source).is_dir() else ""
        lines.append(f"cp -a /context/{source}{end} {target}")
    lines.append(f"chown -R 0:0 {target}")
    as_root = replace(image, user="0:0")
    command = ("/bin/sh", "-ec", "\n".join(lines))
    built = engine.build(as_root, command, mounts=(Mount(context, "/context", read_only=True),))
    return replace(image, layers=built.layers)


# Objects of Kubernetes.


def objects(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


def pod_of(found: dict[str, Any]) -> dict[str, Any]:
    """The pod that a Deployment or a CronJob makes."""
    spec = found["spec"]
    if found["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    pod: dict[str, Any] = spec["template"]["spec"]
    return pod


# Units of systemd.


def unit(path: Path) -> dict[str, dict[str, list[str]]]:
    """Sections of a unit; a name may come several times."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            section.setdefault(name, []).append(value)
    return found
