"""Who else can put an entry into a folder, tried by real users of a namespace of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PEOPLE = Path(__file__).with_name("people.py").read_text()
ALONE = ["unshare", "--mount", "--propagation", "private"]


@pytest.fixture(scope="module", autouse=True)
def _may_have_accounts():
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    done = subprocess.run([*ALONE, "true"], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no mount namespace for accounts of its own: {done.stderr.strip()}")


@pytest.fixture
def among_people():
    """Run a test's code among ann, bob, carl and eve; `told` comes back."""

    def run(code):
        # In a folder that other users can reach, unlike those of pytest.
        with tempfile.TemporaryDirectory() as place:
            Path(place).chmod(0o755)
            program = f"{PEOPLE}\n{code}\nprint(json.dumps(told))"
            done = subprocess.run(
                [*ALONE, sys.executable, "-c", program, place],
                cwd=REPOSITORY,
                check=False,
                capture_output=True,
                text=True,
                timeout=120,
            )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_in_private_mode_a_folder_on_the_way_must_be_mine_or_roots(among_people):
    told = among_people("""
folder("eves", "eve"); folder("eves/cache", "ann", mode=0o700)
folder("open", "eve", mode=0o1777); folder("open/cache", "ann", mode=0o700)
folder("mine", "ann"); folder("mine/cache", "ann", mode=0o700)
folder("roots"); folder("roots/cache", "ann", mode=0o700)
told = {name: opened("ann", PLACE / name / "cache") for name in ("eves", "open", "mine", "roots")}
told["new"] = opened("ann", PLACE / "eves/new")
told["made"] = (PLACE / "eves/new").exists()
told["place"] = str(PLACE)
""")
    for name, mode in (("eves", "0755"), ("open", "1777")):
        assert f"{told['place']}/{name} is not trusted: owned by uid 5003" in told[name]
        assert f"mode {mode}" in told[name]
        assert f"Do: chown 5001 {told['place']}/{name}" in told[name]
    assert "eves is not trusted" in told["new"]
    assert not told["made"]
    assert (told["mine"], told["roots"]) == ("", "")


def test_in_private_mode_a_folder_that_a_group_can_write_needs_the_sticky_bit(among_people):
    told = among_people("""
path = folder("data", 0, TEAM, 0o2775); folder("data/ann", "ann", mode=0o700)
told = {"open": opened("ann", path / "ann")}
path.chmod(0o3775)
told["sticky"] = opened("ann", path / "ann")
path.chmod(0o2755)
told["closed"] = opened("ann", path / "ann")
""")
    assert f"its group {6001} can write it" in told["open"]
    assert "mode 2775, owned by uid 0" in told["open"]
    assert "Do: chmod +t" in told["open"]
    assert (told["sticky"], told["closed"]) == ("", "")


def test_a_group_of_ones_own_may_write_a_folder_on_the_way_if_nobody_else_is_in_it(among_people):
    told = among_people("""
home = folder("home", "ann", mode=0o775); folder("home/cache", "ann", mode=0o700)
told = {"alone": opened("ann", home / "cache")}
accounts(ann="ann,root"); told["and root"] = opened("ann", home / "cache")
accounts(ann="bob"); told["another member"] = opened("ann", home / "cache")
accounts(ann="gone"); told["a member that nobody knows"] = opened("ann", home / "cache")
accounts(more_users="dora:x:5005:5001::/:/bin/sh\\n")
told["a primary group of another"] = opened("ann", home / "cache")
accounts(more_groups="ann2:x:5001:bob\\n")
told["another name of the group"] = opened("ann", home / "cache")
accounts(services="files sss"); told["a directory service"] = opened("ann", home / "cache")
accounts(); os.chown(home, UIDS["ann"], 7777)
told["a group that nobody knows"] = opened("ann", home / "cache")
os.chown(home, UIDS["ann"], UIDS["ann"])
told["alone again"] = opened("ann", home / "cache")
""")
    for name in ("alone", "and root", "alone again"):
        assert told.pop(name) == "", name
    for name, reason in told.items():
        assert "can write it, and it has no sticky bit (mode 0775" in reason, name
    assert len(told) == 6


def test_an_access_list_is_more_than_a_group_of_ones_own(among_people):
    told = among_people("""
import struct
home = folder("home", "ann", mode=0o775); folder("home/cache", "ann", mode=0o700)
entries = [(1, 7, -1), (2, 7, UIDS["eve"]), (4, 7, -1), (16, 7, -1), (32, 5, -1)]
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
try:
    os.setxattr(home, "system.posix_acl_access", acl)
    told = {"reason": opened("ann", home / "cache")}
except OSError as error:
    told = {"skip": str(error)}
""")
    if "skip" in told:
        pytest.skip(f"no access lists here: {told['skip']}")
    assert "can write it, and it has no sticky bit" in told["reason"]


def test_a_group_has_folders_of_its_members_on_the_way_and_no_others(among_people):
    told = among_people("""
told = {}
for name, owner, group, mode in (
    ("members", "bob", TEAM, 0o2770), ("primary", CARL, TEAM, 0o2775), ("roots", 0, TEAM, 0o2775),
    ("strangers", "eve", TEAM, 0o2775), ("another", 0, 5003, 0o2775), ("anybodys", 0, 0, 0o777),
):
    path = folder(name, owner, group, mode); folder(path / "cache", "bob", TEAM, 0o2770)
    told[name] = opened("ann", path / "cache", "group")
""")
    assert [told[name] for name in ("members", "primary", "roots")] == ["", "", ""]
    assert "owned by uid 5003" in told["strangers"]
    assert "its group 5003 can write it" in told["another"]
    assert "everybody can write it" in told["anybodys"]


def test_a_link_on_the_way_must_be_mine_or_roots_also_in_a_signed_store(among_people):
    told = among_people("""
key = PLACE / "key"; key.write_text("5a" * 32); os.chown(key, UIDS["ann"], 0); key.chmod(0o600)
folder("project", "ann"); folder("shared", "eve", mode=0o777)
link = PLACE / "shared/cache"; link.symlink_to(PLACE / "project"); os.lchown(link, 5003, 5003)
def look():
    from dataclasses import replace
    found = open_store(replace(settings(link, "signed"), key_file=key))
    return getattr(found, "reason", "")
told = {"reason": acting("ann")(look)(), "made": os.listdir(PLACE / "project")}
""")
    assert "a symbolic link planted by uid 5003" in told["reason"]
    assert told["made"] == []


def test_members_share_a_folder_of_one_of_them(among_people):
    told = among_people("""
path = folder("shared", "bob", TEAM, 0o2770)
told = {name: opened(name, path, "group") for name in ("ann", "bob", "carl", "root", "eve")}
""")
    assert "eve" in told
    assert told.pop("eve") != ""
    assert set(told.values()) == {""}


def test_a_folder_of_a_group_that_one_is_not_in_is_refused(among_people):
    told = among_people("""
accounts(team="bob,eve")
path = folder("shared", "bob", TEAM, 0o2775)
told = {"ann": opened("ann", path, "group")}
for mode in (0o755, 0o750, 0o700):
    path.chmod(mode); told[oct(mode)] = opened("eve" if mode != 0o700 else "root", path, "group")
""")
    assert "of group 6001, which this process is not in" in told.pop("ann")
    assert "NPUGX_CACHE_DIR" in "".join(told.values())
    assert all("not shared with its group" in reason for reason in told.values())


def test_a_former_member_who_owns_the_folder_runs_nothing_in_the_others_workers(among_people):
    told = among_people("""
accounts(team="ann,bob,eve")
path = folder("shared", "eve", TEAM, 0o2770)
told = {"eve": publish("eve", path, 0o002), "before": programs("ann", path)}
accounts(team="ann,bob")
told["after"] = programs("ann", path)
told["root"] = programs("root", path)
accounts(team="ann,bob", more_users="")
os.chown(path, 0, TEAM)
told["entries of hers"] = programs("ann", path)
""")
    assert told["eve"] == ["", []]
    assert told["before"] == [["forward"], None]
    for name in ("after", "root"):
        texts, reason = told[name]
        assert texts == []
        assert "owned by uid 5003, whom this host does not know as a member of group 6001" in reason
    assert told["entries of hers"][0] == []
    assert "uid 5003" in told["entries of hers"][1]


@pytest.mark.parametrize("part", ["key", "manifest", "blob"])
def test_only_files_of_present_members_count(among_people, part):
    told = among_people(f"""
path = folder("shared", "bob", TEAM, 0o2770)
told = {{"bob": publish("bob", path)}}
key = next(path.glob("v1/ac/*/*"))
blob = next(path.glob("v1/cas/*/*"))
part = {{"key": key, "manifest": next(key.iterdir()), "blob": blob}}["{part}"]
for name, uid, group in (
    ("member", 5001, TEAM), ("primary", CARL, TEAM), ("root", 0, TEAM), ("stranger", 5003, TEAM),
    ("unknown", 7777, TEAM), ("another group", 5001, 5001),
):
    os.chown(part, uid, group)
    told[name] = programs("ann", path)
""")
    assert told.pop("bob") == ["", []]
    for name in ("member", "primary", "root"):
        assert told[name] == [["forward"], None], name
    for name in ("stranger", "unknown"):
        assert "forward" not in told[name][0]
        assert "now" in "".join(map(str, [*told[name][0], told[name][1]]))
    assert "its group can write it, and it is of group 5001 instead of 6001" in str(
        told["another group"]
    )


def test_ids_that_a_user_namespace_lacks_are_nobodys(among_people):
    told = among_people("""
overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
eves = folder("eves", "eve"); mine = folder("mine", "ann")
from npugx_cache.store.io import trust
def look():
    fault = enter_user_namespace(overflow, overflow)
    if fault:
        return {"skip": fault}
    if hasattr(trust, "unmapped_id"):
        trust._unmapped.clear()
    return {
        "shown": [os.geteuid() == overflow, eves.stat().st_uid == overflow],
        "store": getattr(open_store(settings(eves)), "reason", ""),
        "eves": trust.distrust(eves.stat(), "private", None),
        "team": trust.distrust(eves.stat(), "group", overflow),
    }
told = acting("ann")(look)()
""")
    if "skip" in told:
        pytest.skip(f"no user namespaces here: {told['skip']}")
    assert told["shown"] == [True, True]
    assert "which stands for all users unknown to this user namespace" in told["eves"]
    assert told["team"] is not None
    assert "is not trusted" in told["store"]
    assert "chown" not in told["store"]  # nobody can give a folder to a user that stands for all
    assert told["store"].endswith(
        "Do: run as another user than uid 65534, which no folder can belong to here"
    )


def test_a_folder_of_an_owner_that_the_user_namespace_lacks_is_not_to_be_given_away(among_people):
    told = among_people("""
eves = folder("eves", "eve")
def look():
    fault = enter_user_namespace(5001, 5001)
    opened = open_store(settings(eves))
    return {"skip": fault} if fault else {"store": getattr(opened, "reason", "")}
told = acting("ann")(look)()
""")
    if "skip" in told:
        pytest.skip(f"no user namespaces here: {told['skip']}")
    assert told["store"].startswith("/ is not trusted: owned by uid 65534, which stands for all")
    assert told["store"].endswith("Do: let this user namespace know the owner of /")


def test_the_first_member_leaves_a_folder_that_the_others_can_write_whatever_the_umask(
    among_people,
):
    told = among_people("""
path = folder("shared", "bob", TEAM, 0o2770)
told = {"bob": publish("bob", path, 0o077), "ann": publish("ann", path, 0o077, text=b"other")}
told["modes"] = sorted({
    (p.is_dir(), p.stat().st_gid, oct(p.stat().st_mode & 0o777)) for p in path.rglob("*")
})
told["seen"] = programs("carl", path)[0]
""")
    assert told["bob"] == told["ann"] == ["", []]
    assert told["modes"] == [[False, 6001, "0o660"], [True, 6001, "0o770"]]
    assert sorted(told["seen"]) == ["forward", "other"]


def test_a_member_is_told_who_can_mend_a_folder_that_the_group_can_not_write(among_people):
    told = among_people("""
path = folder("shared", "bob", TEAM, 0o2770)
told = {"bob": publish("bob", path)}
subprocess.run(["chmod", "-R", "g-w", path / "v1"], check=True)
told["ann"] = publish("ann", path, text=b"other")
subprocess.run(["chmod", "-R", "g+rwX", path / "v1"], check=True)
told["mended"] = publish("ann", path, text=b"other")
subprocess.run(["chmod", "g-w", next(path.glob("v1/ac/*"))], check=True)
told["shard"] = publish("ann", path, key="abc" + "0" * 61)
path.chmod(0o2750)
subprocess.run(["chmod", "-R", "g-w", path / "v1"], check=True)
told["meant to be read"] = publish("carl", path)
told["path"] = str(path)
""")
    reason, warnings = told["ann"]
    assert reason.startswith("read-only")
    (warning,) = warnings
    assert "v1 (owned by uid 5002, mode 2750)" in warning
    assert f"chmod -R g+rwX {told['path']}/v1" in warning
    assert told["mended"] == ["", []]
    reason, warnings = told["shard"]
    assert "EACCES" in reason
    assert "chmod -R g+rwX" in warnings[0]


def test_a_second_member_reads_writes_locks_and_prunes(among_people):
    told = among_people("""
from npugx_cache.store import PrunePolicy
path = folder("shared", "bob", TEAM, 0o2770)
def work():
    store = open_store(settings(path, "group"))
    manifest, = store.candidates(KEY).manifests
    read = store.read(manifest, ["program"])["program"].decode()
    written = [type(store.publish(draft("cd" * 32, b"of the member"))).__name__ for _ in range(2)]
    with store.lock("cd" * 16, wait=0) as answer:
        locked = type(answer).__name__
    return [read, written, locked, store.prune(PrunePolicy(everything=True)).entries]
told = [publish("bob", path, 0o077)]
def lock():
    with open_store(settings(path, "group")).lock("cd" * 16, wait=0):
        pass
acting("bob", 0o077)(lock)()
told += acting("ann")(work)()
""")
    assert told == [["", []], "forward", ["Published", "Published"], "Locked", 2]
