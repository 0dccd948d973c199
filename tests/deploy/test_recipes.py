"""The recipes of docs/deployment.md are followed: each worker starts twice, and compiles once.

The files of examples/deploy are read as Docker, Kubernetes, systemd and GitHub read them, and their
lines run as they are, in containers without an engine (`containers.py`). What stands in for a
cluster or for systemd is here: volumes with the owners and modes that kubelet gives them, the
folders and the socket that systemd makes. `pytest -m thorough -s tests/deploy` prints each start.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import containers
import recipes
from containers import ADDRESS, Container, Engine, Image, Mount

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]
_ASK = """
import json, sys, time, urllib.error, urllib.request
cold = 0
while True:
    try:
        answer = urllib.request.urlopen(sys.argv[1], timeout=10).read()
        break
    except urllib.error.HTTPError as error:
        assert error.code == 503, error
        cold += 1
    except OSError:
        pass
    time.sleep(0.2)
print(json.dumps(json.loads(answer) | {"cold": cold}))
"""


class Start(NamedTuple):
    hits: int
    compiled: int


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    reason = containers.why_not()
    if reason is not None:
        pytest.skip(reason)
    made = Engine()
    yield made
    made.close()


@pytest.fixture(scope="module")
def checkout(engine: Engine) -> Path:
    """The files of the repository, as `git clone` brings them."""
    root, folder = recipes.ROOT, engine.new_folder("checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, target, follow_symlinks=False)
    for made in (folder, *folder.rglob("*")):
        if made.is_dir() and not made.is_symlink():
            made.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def images(engine: Engine, checkout: Path, prewarmed: Path) -> dict[str, Image]:
    context = engine.new_folder("context")
    shutil.copytree(checkout, context, symlinks=True, dirs_exist_ok=True)
    shutil.copy(prewarmed, context / "graphs.tar")
    return recipes.build(engine, context, recipes.FOLDER / "Dockerfile", engine.base())


def wait_until_ready(container: Container, url: str, *, what: str) -> Start:
    """Ask as a probe does, from outside of the container but on its network."""
    asked = container.run("timeout", "600", sys.executable, "-c", _ASK, url, inside=False)
    assert asked.returncode == 0, asked.stderr + container.said()
    health = json.loads(asked.stdout)
    assert health["state"] == "warm"
    seconds = time.monotonic() - container.began
    print(
        f"{what}: {health['hits']} hits, {health['compiled']} compiled; warm "
        f"{health['warm_after']:.1f} s after the imports, {seconds:.1f} s after the start; "
        f"{health['cold']} probes were told 503"
    )
    return Start(health["hits"], health["compiled"])


def test_each_image_starts_twice(engine: Engine, images: dict[str, Image]) -> None:
    expected = {
        "worker": [Start(0, 2), Start(2, 0)],
        "baked": [Start(2, 0)] * 2,
        "imported": [Start(2, 0)] * 2,
    }
    assert {*images} == {*expected}
    for name, image in images.items():
        mounts = tuple(Mount(volume(engine, image, path), path) for path in image.volumes)
        found = []
        for which in ("first", "second"):
            container = engine.start(image, mounts=mounts)
            url = "http://localhost:8000/health"
            found.append(wait_until_ready(container, url, what=f"image {name}, {which} start"))
            checked = container.run(*image.health)
            assert checked.returncode == 0, checked.stderr
            assert container.stop(30) == 0, container.said()
            assert "WARNING" not in container.said()
        assert found == expected[name]


def volume(engine: Engine, image: Image, path: str) -> Path:
    """A new volume of Docker's: it begins as a copy of the folder that the image has there."""
    made = engine.new_folder("volume")
    status = image.look_up(path).stat()
    made.chmod(status.st_mode & 0o7777)
    os.chown(made, status.st_uid, status.st_gid)
    return made


# Kubernetes: what kubelet does with volumes, init containers and probes.


class Cluster:
    """Volumes and Secrets of a cluster, and one node of it."""

    def __init__(self, engine: Engine, image: Image, key: Path) -> None:
        self.engine, self.image = engine, image
        self.claims: dict[str, Path] = {}
        self.secrets: dict[str, dict[str, bytes]] = {
            "graphs-key": {"graphs.key": key.read_bytes()},
            "graphs-bucket": {"AWS_ACCESS_KEY_ID": b"testing", "AWS_SECRET_ACCESS_KEY": b"testing"},
        }

    def start(self, pod: dict[str, Any], network: Container | None = None) -> Container:
        group = pod["securityContext"]["fsGroup"]
        made = {each["name"]: self._volume(each, group) for each in pod["volumes"]}
        for init in pod["initContainers"]:
            self._container(pod, init, made, network).finish()
        (worker,) = pod["containers"]
        return self._container(pod, worker, made, network)

    def _volume(self, found: dict[str, Any], group: int) -> Path:
        if "persistentVolumeClaim" in found:
            name = found["persistentVolumeClaim"]["claimName"]
            if name not in self.claims:
                self.claims[name] = self.engine.new_folder("claim")
                self.claims[name].chmod(0o755)
            made, bits = self.claims[name], 0o660
        elif "emptyDir" in found:
            made, bits = self.engine.new_folder("empty"), 0o660
            made.chmod(0o777)
        else:
            secret = found["secret"]
            made, bits = self.engine.new_folder("secret"), 0o440
            made.chmod(0o755)
            (made / "..of_today").mkdir(mode=0o755)
            (made / "..data").symlink_to("..of_today")
            for name, content in self.secrets[secret["secretName"]].items():
                file = made / "..of_today" / name
                file.write_bytes(content)
                file.chmod(secret.get("defaultMode", 0o644))
                (made / name).symlink_to(f"..data/{name}")
        give_to_group(made, group, bits)
        return made

    def _container(
        self, pod: dict[str, Any], spec: dict[str, Any], made: dict[str, Path], network: Any
    ) -> Container:
        assert spec["image"] == "npugx-worker"
        context = pod["securityContext"]
        user = f"{context['runAsUser']}:{context['runAsGroup']}"
        variables = {each["name"]: each["value"] for each in spec.get("env", [])}
        for source in spec.get("envFrom", []):
            for name, value in self.secrets[source["secretRef"]["name"]].items():
                variables[name] = value.decode()
        mounts = tuple(
            Mount(made[each["name"]], each["mountPath"], each.get("readOnly", False))
            for each in spec["volumeMounts"]
        )
        return self.engine.start(
            replace(self.image, user=user),
            tuple(spec.get("command", ())),
            mounts=mounts,
            groups=(str(context["fsGroup"]),),
            read_only=spec.get("securityContext", {}).get("readOnlyRootFilesystem", False),
            network=network,
            **variables,
        )


def give_to_group(folder: Path, group: int, bits: int) -> None:
    """Do what kubelet does at each mount of a volume in a pod with `fsGroup`."""
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        os.chown(path, status.st_uid, group, follow_symlinks=False)
        if path.is_symlink():
            continue
        more = bits | 0o2110 if path.is_dir() else bits
        path.chmod(status.st_mode & 0o7777 | more)


@pytest.fixture
def cluster(engine: Engine, images: dict[str, Image]) -> Cluster:
    folder = engine.new_folder("key")
    made = engine.start(
        images["worker"],
        ("npugx-cache", "key", "new", "/keys/graphs.key"),
        mounts=(Mount(own(folder, 10001), "/keys"),),
    )
    made.finish()
    return Cluster(engine, images["worker"], folder / "graphs.key")


def own(folder: Path, user: int) -> Path:
    folder.chmod(0o700)
    os.chown(folder, user, user)
    return folder


def probe(container: Container, pod: dict[str, Any], what: str) -> Start:
    asked = pod["containers"][0]["readinessProbe"]["httpGet"]
    url = f"http://{ADDRESS}:{asked['port']}{asked['path']}"
    return wait_until_ready(container, url, what=what)


def test_pods_share_a_volume(cluster: Cluster) -> None:
    claim, deployment, pruning = recipes.objects(recipes.FOLDER / "pod-shared-volume.yaml")
    pod = recipes.pod_of(deployment)
    assert claim["metadata"]["name"] == pod["volumes"][0]["persistentVolumeClaim"]["claimName"]
    found = []
    for which in ("first", "second"):
        pods = [cluster.start(pod) for _ in range(deployment["spec"]["replicas"])]
        told = [f"pod {number} with a shared volume, {which} start" for number in (1, 2)]
        found.append([probe(*each) for each in zip(pods, [pod] * 2, told, strict=True)])
        for each in pods:
            assert each.stop(pod["terminationGracePeriodSeconds"]) == 0, each.said()
            assert "WARNING" not in each.said()
    first, second = found
    assert sum(each.compiled for each in first) == 2  # each graph once, in one of the pods
    assert sum(each.hits for each in first) == 2
    assert second == [Start(2, 0)] * 2
    pruned = cluster.start(recipes.pod_of(pruning)).finish()
    print(f"the CronJob: {pruned.strip()}")
    assert "left in /graphs: 2 entries" in pruned


def test_pods_share_a_remote_tier(cluster: Cluster, engine: Engine) -> None:
    pod = recipes.pod_of(recipes.objects(recipes.FOLDER / "pod-remote-tier.yaml")[0])
    variables = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
    address = variables["NPUGX_CACHE_REMOTE"]
    bucket, host, port = re.search(r"s3://(.+)/.+endpoint=http://(.+):(\d+)&", address).groups()
    names = engine.new_folder("names")
    (names / "etc").mkdir()
    (names / "etc/hosts").write_text(f"127.0.0.1 localhost\n{ADDRESS} {host}\n")
    for made in (names, names / "etc", names / "etc/hosts"):
        made.chmod(0o755)
    image = replace(cluster.image, layers=(names, *cluster.image.layers))
    # On a busy machine a healthy tier may need more than the 250 ms that a worker waits.
    where = "python -c 'import npugx_cache.store.remote.tier as t; print(t.__file__)'"
    patience = f"sed -i 's/^BUDGET = 0.25$/BUDGET = 30.0/' $({where})"
    patient = engine.build(replace(image, user="0:0"), ("sh", "-ec", patience))
    cluster.image = replace(image, layers=patient.layers)
    server = ("moto_server", "-H", "0.0.0.0", "-p", port)
    # Without the variable, moto takes the first part of the host's name for the bucket.
    moto = engine.start(engine.base(), server, S3_IGNORE_SUBDOMAIN_BUCKETNAME="true")
    put = (
        "import time, urllib.request as u\nwhile True:\n    try:\n"
        f"        u.urlopen(u.Request('http://{ADDRESS}:{port}/{bucket}', method='PUT'))\n"
        "        break\n    except OSError:\n        time.sleep(0.2)"
    )
    done = moto.run("timeout", "100", sys.executable, "-c", put, inside=False)
    assert done.returncode == 0, moto.said()
    found = []
    for which in ("first", "second"):  # each on a node whose folder is empty
        started = cluster.start(pod, network=moto)
        found.append(probe(started, pod, f"pod with a remote tier, {which} start"))
        assert started.stop(pod["terminationGracePeriodSeconds"]) == 0, started.said()
        assert "WARNING" not in started.said()
    assert found == [Start(0, 2), Start(2, 0)]


# systemd: what it makes for a unit before ExecStart.

_OF_SYSTEMD = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}


@pytest.fixture(scope="module")
def host(engine: Engine, checkout: Path) -> Image:
    """A host on which install.sh ran. systemctl knows by a variable that no systemd runs there."""
    image = replace(engine.base(), folder="/checkout")
    mounts = (Mount(checkout, "/checkout"),)
    script = ("bash", "examples/deploy/install.sh")
    return engine.build(image, script, mounts=mounts, SYSTEMD_OFFLINE="1")


class Service:
    """A service as systemd starts it; its folders stay."""

    def __init__(self, engine: Engine, host: Image, name: str, folders: dict[str, Path]) -> None:
        self._engine, self._folders = engine, folders
        self.settings = recipes.unit(host.look_up(f"/etc/systemd/system/{name}"))["Service"]
        (user,) = self.settings["User"]
        accounts = host.look_up("/etc/passwd").read_text().splitlines()
        row = next(line.split(":") for line in accounts if line.startswith(f"{user}:"))
        places = self.settings.get("WorkingDirectory", ["/"])
        self._image = replace(host, user=f"{row[2]}:{row[3]}", folder=places[0])
        self._variables = {**_OF_SYSTEMD, "USER": user, "LOGNAME": user, "HOME": row[5]}
        for pair in self.settings["Environment"]:
            name, _, value = pair.partition("=")
            self._variables[name] = value

    def start(self, listening: socket.socket | None = None) -> Container:
        (command,) = self.settings["ExecStart"]
        assert self.settings["ProtectSystem"] == ["strict"]
        assert self.settings["PrivateTmp"] == ["yes"]
        passed = {} if listening is None else {"LISTEN_FDS": "1"}
        return self._engine.start(
            self._image,
            tuple(command.split()),
            mounts=tuple(self._mounts()),
            read_only=True,
            own_network=False,
            socket=None if listening is None else listening.fileno(),
            **self._variables,
            **passed,
        )

    def _mounts(self) -> Iterator[Mount]:
        for kind, place in (("Cache", "/var/cache"), ("State", "/var/lib")):
            (name,) = self.settings[f"{kind}Directory"]
            path = f"{place}/{name}"
            if path not in self._folders:
                self._folders[path] = made = self._engine.new_folder(kind)
                user, group = map(int, self._image.user.split(":"))
                os.chown(made, user, group)
                made.chmod(int(self.settings[f"{kind}DirectoryMode"][0], 8))
            yield Mount(self._folders[path], path)


def test_a_service_of_systemd_starts_twice(engine: Engine, host: Image) -> None:
    folders: dict[str, Path] = {}
    service = Service(engine, host, "npugx-worker.service", folders)
    listened = recipes.unit(recipes.FOLDER / "npugx-worker.socket")["Socket"]["ListenStream"]
    assert listened == ["8000"]  # here a port that is free
    found = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        container = service.start(listening)
        url = f"http://127.0.0.1:{port}/health"
        found.append(wait_until_ready(container, url, what="systemd, first start"))
        assert container.stop(int(service.settings["TimeoutStopSec"][0])) == 0, container.said()
        # The socket stays open, so somebody who comes now is not turned away.
        with socket.create_connection(("127.0.0.1", port)) as waiting:
            waiting.sendall(b"GET /generate?prompt=hello&tokens=4 HTTP/1.1\r\n\r\n")
            container = service.start(listening)
            found.append(wait_until_ready(container, url, what="systemd, second start"))
            answer = waiting.makefile().read()
        assert len(answer.partition("\n\n")[2].splitlines()) == 4, answer
        assert container.stop(int(service.settings["TimeoutStopSec"][0])) == 0, container.said()
    assert found == [Start(0, 2), Start(2, 0)]
    pruned = Service(engine, host, "npugx-prune.service", folders).start().finish()
    print(f"npugx-prune.service: {pruned.strip()}")
    assert "left in /var/cache/npugx: 2 entries" in pruned


def test_systemd_knows_the_units_and_enables_them(engine: Engine, host: Image) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here: apt-get install systemd")
    names = [path.name for path in recipes.FOLDER.glob("npugx-*")]
    units = [f"/etc/systemd/system/{name}" for name in sorted(names)]
    checked = engine.start(host, ("systemd-analyze", "verify", "--man=no", *units))
    said = checked.finish()
    print(f"systemd-analyze verify, of {len(units)} units: {said.strip() or 'no complaint'}")
    assert [line for line in said.splitlines() if "npugx" in line] == []
    enabled = host.layers[0] / "etc/systemd/system"
    assert {path.name for path in enabled.glob("*.wants/npugx-*")} == {
        "npugx-worker.socket",
        "npugx-worker.service",
        "npugx-prune.timer",
    }


# A workflow of GitHub's: what the actions do, and how a runner runs a line.


class Runner:
    def __init__(self, engine: Engine, checkout: Path, stored: dict[str, Path]) -> None:
        self._engine, self._checkout, self._stored = engine, checkout, stored

    def run(self, workflow: dict[str, Any], name: str) -> str:
        """Follow the steps of a job in a new workspace, and return what they printed."""
        job, workspace = workflow["jobs"][name], self._engine.new_folder("workspace")
        path = workspace.parent / f"{workspace.name}-path"
        path.touch()
        mounts = (Mount(workspace, "/workspace"), Mount(path.parent, "/runner"))
        variables = {**workflow.get("env", {}), **job.get("env", {})}
        variables["GITHUB_PATH"] = f"/runner/{path.name}"
        image, printed, kept = replace(self._engine.base(), folder="/workspace"), "", None
        for step in job["steps"]:
            given = step.get("with", {})
            match step.get("uses", "run").partition("@")[0]:
                case "actions/checkout":
                    shutil.copytree(self._checkout, workspace, symlinks=True, dirs_exist_ok=True)
                case "actions/cache":  # and stores the file when the job has ended
                    kept = given["path"]
                    if "cache" in self._stored:
                        shutil.copy(self._stored["cache"], workspace / kept)
                case "actions/upload-artifact":
                    self._stored[given["name"]] = workspace / given["path"]
                case "actions/download-artifact":
                    shutil.copy(self._stored[given["name"]], workspace)
                case "run":
                    added = path.read_text().splitlines()[::-1]
                    known = image.variables["PATH"]
                    step_path = {"PATH": ":".join([*added, known])}
                    command = ("bash", "-e", "-c", step["run"])
                    given = {**containers.OFFLINE, **variables, **step_path}
                    done = self._engine.start(image, command, mounts=mounts, **given)
                    printed += f"$ {step['run']}\n{done.finish()}"
                case other:
                    raise ValueError(f"nobody follows {other}")
        if kept is not None:
            self._stored["cache"] = workspace / kept
        return printed


@pytest.fixture(scope="module")
def pipeline(engine: Engine, checkout: Path) -> dict[str, Any]:
    """What two runs of the workflow printed, and the file that they leave."""
    (workflow,) = recipes.objects(recipes.FOLDER / "prewarm.yml")
    stored: dict[str, Path] = {}
    runner = Runner(engine, checkout, stored)
    printed = [
        {name: runner.run(workflow, name) for name in workflow["jobs"]} for _ in ("first", "second")
    ]
    return {"printed": printed, "file": stored["graphs"]}


@pytest.fixture(scope="module")
def prewarmed(pipeline: dict[str, Any]) -> Path:
    found: Path = pipeline["file"]
    return found


def test_a_workflow_compiles_in_its_first_run_only(pipeline: dict[str, Any]) -> None:
    first, second = pipeline["printed"]
    for which, run in (("first", first), ("second", second)):
        for job, text in run.items():
            lines = [line for line in text.splitlines() if re.search(r"graph|entr", line)]
            told = [line for line in lines if not line.startswith(("$", " "))]
            print(f"workflow, {which} run, {job}:", *told, sep="\n  ")
    assert "2 graphs compiled" in first["prewarm"]
    assert "0 graphs compiled" in second["prewarm"]
    assert "2 lookups found a graph" in second["prewarm"]
    for run in (first, second):
        assert "'hits': 2, 'compiled': 0" in run["check"]
