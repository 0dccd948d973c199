from __future__ import annotations

import compileall
import json
import os
import platform
import py_compile
import socket
import subprocess
import sys

import pytest

from npugx_cache.cli.bytecode import examine_bytecode
from npugx_cache.version import VERSION

NAMES = {
    "bytecode",
    "signing",
    "permissions",
    "file system",
    "free space",
    "clock",
    "rename",
    "exclusive creation",
    "locks",
    "takeover",
}


def test_doctor_tries_everything_and_leaves_nothing_behind(filled, run):
    before = sorted(filled.root.rglob("*"))
    done = run("doctor", filled.root, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    findings = {row["name"]: row for row in json.loads(done.stdout)["findings"]}
    assert set(findings) == NAMES
    for name in ("rename", "exclusive creation", "locks", "takeover", "clock", "permissions"):
        assert findings[name]["verdict"] == "ok", findings[name]
    assert sorted(filled.root.rglob("*")) == before


@pytest.mark.parametrize("name", [b"\xff\xfe", "ü".encode(), b"two\nlines"])
def test_doctor_takes_any_name_of_a_folder(run, tmp_path, name):
    folder = tmp_path / os.fsdecode(name)
    folder.mkdir()
    done = run("doctor", folder, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    findings = {row["name"]: row["verdict"] for row in json.loads(done.stdout)["findings"]}
    assert {findings[each] for each in ("rename", "exclusive creation", "locks")} == {"ok"}
    assert run("doctor", folder).returncode == 0


def test_doctor_examines_the_folder_of_the_environment(filled, run):
    shown = run("doctor").stdout
    assert "flock excludes another process" in shown
    assert "trust is private" in shown


def test_sources_without_bytecode_are_a_warning_where_python_keeps_none(tmp_path, monkeypatch):
    package = tmp_path / "package"
    (package / "part").mkdir(parents=True)
    for name in ("__init__.py", "part/one.py"):
        (package / name).write_text("x = 1\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert examine_bytecode(package).verdict == "ok"  # Python would keep it
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = examine_bytecode(package)
    assert (found.name, found.verdict) == ("bytecode", "warning")
    assert "2 of 2 files" in found.detail
    subprocess.run(found.detail.split("`")[1].split(), check=True, stdout=subprocess.DEVNULL)
    assert examine_bytecode(package).verdict == "ok"
    os.utime(package / "part/one.py", (1, 1))  # as a tool does that copies files without times
    assert "1 of 2 files" in examine_bytecode(package).detail
    compileall.compile_dir(
        package,
        quiet=2,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        force=True,
    )
    os.utime(package / "part/one.py", (2, 2))
    assert examine_bytecode(package).verdict == "ok"


def test_doctor_knows_memory_from_disk(run, tmp_path):
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm here")
    shown = run("doctor", "/dev/shm", NPUGX_CACHE_TRUST="group").stdout
    assert "tmpfs: gone at a reboot" in shown


def test_an_unfit_folder_exits_1_with_the_remedy(filled, run):
    filled.root.chmod(0o777)
    done = run("doctor")
    assert done.returncode == 1
    assert "chmod o-w" in done.stdout
    assert "permissions" in done.stderr


def test_signed_trust_without_a_key_is_unfit(filled, run, tmp_path):
    done = run("doctor", NPUGX_CACHE_TRUST="signed")
    assert done.returncode == 1
    assert "npugx-cache key new" in done.stdout
    key = tmp_path / "key"
    run("key", "new", key)
    assert "signed and verified" in run("doctor", NPUGX_CACHE_KEY_FILE=str(key)).stdout


def test_a_folder_that_is_not_there_is_an_error(run, tmp_path):
    done = run("doctor", tmp_path / "missing")
    assert done.returncode == 2
    assert not (tmp_path / "missing").exists()


def test_doctor_says_folder_versions_and_settings(filled, run, root):
    given = {"NPUGX_CACHE_MAX_SIZE": "10G"}
    done = run("doctor", **given)
    assert done.returncode == 0
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert str(root) in lines["folder"]
    assert "NPUGX_CACHE_DIR" in lines["folder"]
    assert VERSION in lines["npugx_cache"]
    assert platform.python_version() in lines["python"]
    assert "NPUGX_CACHE_MAX_SIZE=10G (set by environment)" in lines["setting"]
    shown = json.loads(run("doctor", "--dir", root, "--format", "json", **given).stdout)
    assert shown["root"] == str(root)
    assert shown["versions"].keys() == {"npugx_cache", "python", "torch", "torch_npu"}
    values = {row["variable"]: row["value"] for row in shown["settings"]}
    assert values["NPUGX_CACHE_MAX_SIZE"] == 10 << 30


def test_doctor_knows_the_version_of_torch_without_importing_it(filled, run):
    import torch

    versions = json.loads(run("doctor", "--format", "json").stdout)["versions"]
    assert versions["torch"] == torch.__version__


@pytest.mark.thorough
def test_doctor_tries_the_remote_tier(filled, run, tmp_path):
    key = tmp_path / "key"
    assert run("key", "new", key).returncode == 0
    given = {"NPUGX_CACHE_REMOTE": f"fs://{tmp_path}/remote", "NPUGX_CACHE_KEY_FILE": str(key)}
    shown = run("doctor", "--dir", tmp_path, **given).stdout
    assert f"remote tier: fs://{tmp_path}/remote: read in" in shown
    assert not [path for path in (tmp_path / "remote").rglob("*") if path.is_file()]
    (tmp_path / "no folder").touch()
    given["NPUGX_CACHE_REMOTE"] = f"fs://{tmp_path}/no folder/remote"
    shown = run("doctor", "--dir", tmp_path, **given).stdout
    assert "workers go on without the tier" in shown


@pytest.mark.thorough
def test_doctor_gives_a_silent_remote_tier_up_soon(filled, run, tmp_path):
    key = tmp_path / "key"
    assert run("key", "new", key).returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections and says nothing
        address = f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        given = {"NPUGX_CACHE_REMOTE": address, "NPUGX_CACHE_KEY_FILE": str(key)}
        found = json.loads(run("doctor", "--dir", tmp_path, "--format", "json", **given).stdout)
    (tier,) = [each for each in found["findings"] if each["name"] == "remote tier"]
    assert tier["verdict"] == "warning"
    # A request itself is given up after ten seconds, and that has other words.
    assert f"{address}: no answer in 2.5 s; workers go on without the tier" in tier["detail"]


def test_doctor_lists_the_engines_and_what_keeps_them_from_us(filled, run, tmp_path):
    for package in ("vllm", "vllm_ascend", "sglang"):
        (tmp_path / "engines" / package).mkdir(parents=True)
        code = "raise RuntimeError('doctor imports no engine')"
        (tmp_path / "engines" / package / "__init__.py").write_text(code)
    installed = tmp_path / "engines" / "npugx_cache-0.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: npugx_cache\nVersion: 0.0\n")
    points = installed / "entry_points.txt"
    points.touch()

    def told(**environment):
        path = os.pathsep.join([str(tmp_path / "engines"), os.environ.get("PYTHONPATH", "")])
        done = run("doctor", PYTHONPATH=path, **environment)
        assert done.returncode == 0, done.stderr
        lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
        return {line[0]: line[1] for line in lines if line[0] in {"vllm", "sglang"}}

    off = told()
    assert off["vllm"] == "of no known version, not wired: NPUGX_CACHE_VLLM=1 is not set"
    assert off["sglang"].endswith("not wired: NPUGX_CACHE_SGLANG=1 is not set")
    on = {"NPUGX_CACHE_VLLM": "1", "NPUGX_CACHE_SGLANG": "1"}
    assert "npugx_cache in vllm.general_plugins is not installed" in told(**on)["vllm"]
    points.write_text(
        "[vllm.general_plugins]\nnpugx_cache = npugx_cache.integrations.plugins:wire_vllm\n"
        "[sglang.srt.plugins]\nnpugx_cache = npugx_cache.integrations.plugins:wire_sglang\n"
    )
    assert "set NPUGX_CACHE_VLLM=replace" in told(**on)["vllm"]
    assert told(**on)["sglang"].endswith("wired (1)")
    on["NPUGX_CACHE_VLLM"] = "replace"
    assert told(**on)["vllm"].endswith("wired (replace)")
    assert "VLLM_PLUGINS does not name npugx_cache" in told(**on, VLLM_PLUGINS="other")["vllm"]
    mega = told(**on, VLLM_USE_MEGA_AOT_ARTIFACT="1")
    assert mega["vllm"].endswith("not wired: VLLM_USE_MEGA_AOT_ARTIFACT=1 is set")
    assert run("doctor", NPUGX_CACHE_VLLM="yes").returncode == 2
