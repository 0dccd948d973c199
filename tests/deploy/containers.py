"""Containers without a container engine: an overlay of this machine's files, in namespaces.

The base image is this machine without npugx_cache: its Python has the packages of the tests, and
pip finds them installed. A container has mounts, process numbers and a network of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ADDRESS = "10.244.0.7"
"""The address of each container in its own network, beside localhost."""
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_ROOT_USER_ACTION": "ignore"}
"""Everything that a recipe installs is on this machine already. (pip's 0 means: no isolation.)"""
_TOLD = {"NPUGX_CACHE_LOG": "warning"}
_PATH = f"{sys.prefix}/bin:/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"

# Runs as the first process of the namespaces, and becomes the program. The mounts are private first
# of all, so that none of them reaches this machine.
_ENTER = """
set -e
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$UPPER,workdir=$WORK" "$ROOT"
mkdir -p "$ROOT/dev" "$ROOT/proc" "$ROOT/tmp"
mount --rbind /dev "$ROOT/dev"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/dev/shm"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
while read -r options source target; do
    [ -n "$target" ] || continue
    mkdir -p "$ROOT$target"
    mount --bind "$source" "$ROOT$target"
    if [ "$options" = ro ]; then mount -o remount,bind,ro "$ROOT$target"; fi
done <<< "$MOUNTS"
if [ -n "$READ_ONLY" ]; then mount -o remount,bind,ro "$ROOT"; fi
if [ -n "$ADDRESS" ]; then
    ip link set lo up
    ip addr add "$ADDRESS/32" dev lo
fi
if [ -n "$SOCKET" ]; then eval "exec 3<&$SOCKET"; fi
exec chroot --userspec="$IDS" --groups="$GROUPS_TOO" "$ROOT" "$@"
"""
_ADDED = """
import os, sys
own = next((i for i, place in enumerate(sys.path) if os.path.isdir(place + "/pip")), None)
if own is not None and {packages!r} not in sys.path:
    sys.path.insert(own, {packages!r})
"""


@dataclass(frozen=True)
class Image:
    """Layers above this machine's files, the topmost first, and what a start needs to know."""

    layers: tuple[Path, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    user: str = "0:0"
    folder: str = "/"
    command: tuple[str, ...] = ()
    health: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()

    def look_up(self, path: str) -> Path:
        """A file of the image, where this machine has it."""
        found = (layer / path.lstrip("/") for layer in self.layers)
        return next((each for each in found if each.exists()), Path(path))

    def home_of(self, uid: str) -> str:
        accounts = self.look_up("/etc/passwd").read_text().splitlines()
        rows = (line.split(":") for line in accounts)
        return next((row[5] for row in rows if row[2] == uid), "/")


@dataclass(frozen=True)
class Mount:
    source: Path
    target: str
    read_only: bool = False


class Container:
    """A started program. Its own layer is `changes`."""

    def __init__(self, process: subprocess.Popen[bytes], changes: Path, log: Path) -> None:
        self.process, self.changes, self._log = process, changes, log
        self.began = time.monotonic()

    @property
    def first(self) -> int:
        """The number that this machine has for the first process in the container."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        while not (found := children.read_text().split()):
            assert self.process.poll() is None, self.said()
            time.sleep(0.01)
        return int(found[0])

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def run(self, *command: str, inside: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program in the container, or only in its network."""
        where = ("-m", "-p", "-r", "-w", "-n") if inside else ("-n",)
        return subprocess.run(
            ["nsenter", "-t", str(self.first), *where, *command],
            env={"PATH": _PATH},
            capture_output=True,
            text=True,
            check=False,
        )

    def stop(self, seconds: int) -> int:
        """Stop the program as an engine does: SIGTERM, and SIGKILL when the time is up."""
        os.kill(self.first, signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()  # and with it the container
            self.process.wait()

    def finish(self, seconds: int = 300) -> str:
        """What a program printed that has to end well."""
        code = self.process.wait(seconds)
        assert code == 0, self.said()[-4000:]
        return self.said()


class Engine:
    """Starts containers, and keeps their layers in `folder`, which is not on the root's disk."""

    def __init__(self) -> None:
        # The layers of an overlay can't lie in a folder that is a layer.
        self.folder = Path(tempfile.mkdtemp(prefix="npugx-deploy-", dir="/dev/shm"))
        self.folder.chmod(0o755)
        self._started: list[Container] = []

    def new_folder(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))

    def base(self) -> Image:
        """This machine, as an image; any user may run its Python, as in an image of Docker Hub."""
        layer = self.new_folder("base")
        for prefix in {Path(sys.base_prefix), Path(sys.prefix)}:
            (layer / prefix.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        packages = Path(sysconfig.get_path("purelib"))
        for ours in (*packages.glob("*npugx_cache*"), Path(sys.prefix, "bin/npugx-cache")):
            hidden = layer / ours.relative_to("/")
            hidden.parent.mkdir(parents=True, exist_ok=True)
            os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0))  # an overlay shows nothing there
        # An environment that a recipe makes has these packages as well, once it has a pip.
        added = layer / sysconfig.get_path("stdlib").lstrip("/") / "sitecustomize.py"
        added.parent.mkdir(parents=True, exist_ok=True)
        added.write_text(_ADDED.format(packages=str(packages)))
        for made in (layer, *layer.rglob("*")):
            if not made.is_char_device():
                made.chmod(0o755)
        return Image(layers=(layer,), variables={"PATH": _PATH, **_TOLD})

    def start(
        self,
        image: Image,
        command: tuple[str, ...] = (),
        *,
        mounts: tuple[Mount, ...] = (),
        groups: tuple[str, ...] = (),
        read_only: bool = False,
        network: Container | None = None,
        own_network: bool = True,
        socket: int | None = None,
        **variables: str,
    ) -> Container:
        place = self.new_folder("container")
        place.chmod(0o755)
        for name in ("changes", "work", "root"):
            (place / name).mkdir(mode=0o755)
        uid = image.user.partition(":")[0]
        inside = {"HOME": image.home_of(uid), **image.variables, **variables}
        settings = {
            "PATH": os.environ["PATH"],
            "LOWER": ":".join([*map(str, image.layers), "/"]),
            "UPPER": str(place / "changes"),
            "WORK": str(place / "work"),
            "ROOT": str(place / "root"),
            "MOUNTS": "\n".join(
                f"{'ro' if each.read_only else 'rw'} {each.source} {each.target}" for each in mounts
            ),
            "READ_ONLY": "yes" if read_only else "",
            "ADDRESS": ADDRESS if own_network and network is None else "",
            "SOCKET": "" if socket is None else str(socket),
            "IDS": image.user,
            "GROUPS_TOO": ",".join(groups) or image.user.partition(":")[2],
        }
        program = ["env", "-i", "-C", image.folder, *(f"{k}={v}" for k, v in inside.items())]
        entered = [] if network is None else ["nsenter", "-t", str(network.first), "-n"]
        spaces = ["--mount", "--pid", "--fork", "--kill-child"]
        if own_network and network is None:
            spaces.append("--net")
        log = place / "log"
        with log.open("wb") as out:
            enter = [*entered, "unshare", *spaces, "bash", "-c", _ENTER, "enter"]
            process = subprocess.Popen(
                [*enter, *program, *(command or image.command)],
                env=settings,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=() if socket is None else (socket,),
            )
        self._started.append(Container(process, place / "changes", log))
        return self._started[-1]

    def build(self, image: Image, command: tuple[str, ...], **settings: Any) -> Image:
        """The image with what the command changes."""
        done = self.start(image, command, **{**settings, **OFFLINE})
        done.finish()
        return replace(image, layers=(done.changes, *image.layers))

    def close(self) -> None:
        for container in self._started:
            container.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def why_not() -> str | None:
    """Why this machine can run no containers, or None."""
    if os.geteuid() != 0:
        return "containers of namespaces need root"
    lacking = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if lacking:
        return f"containers of namespaces need {', '.join(lacking)}"
    engine = Engine()
    try:
        engine.start(engine.base(), ("true",)).finish(60)
    except (AssertionError, OSError) as error:
        return f"no containers of namespaces here: {error}"
    finally:
        engine.close()
    return None
