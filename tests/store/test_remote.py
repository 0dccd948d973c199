"""The remote tier on a folder that OpenDAL keeps: what is sent, fetched, verified and refused."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

import pytest

from npugx_cache import config
from npugx_cache.config import Settings, remote_address
from npugx_cache.counters import PROCESS
from npugx_cache.errors import OptionError
from npugx_cache.store import PrunePolicy, Store, open_store
from npugx_cache.store.format.signing import new_secret
from npugx_cache.store.remote import copies, tier
from npugx_cache.store.remote.connection import connection_to


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Let no answer be late, because a test must not depend on how busy the machine is."""
    monkeypatch.setattr(tier, "BUDGET", 30.0)


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key"
    path.write_text(new_secret())
    path.chmod(0o600)
    return path


@pytest.fixture
def address(tmp_path):
    return f"fs://{tmp_path}/remote"


@pytest.fixture
def host(tmp_path, address, key_file):
    """The store of a host that has a folder of its own, and the remote tier."""

    def opening(name, **settings):
        given = {"trust": "signed", "key_file": key_file, "remote": address, **settings}
        store = open_store(Settings(cache_dir=tmp_path / name, **given))
        assert isinstance(store, Store), store
        return store

    return opening


def sent(address):
    """Wait until what was published is at the remote tier."""
    writer = tier._writers[remote_address.parse(address)]
    with writer._changed:
        assert writer._changed.wait_for(lambda: not writer._running, 30)


def objects(tmp_path, part):
    return [path for path in (tmp_path / "remote/v1" / part).rglob("*") if path.is_file()]


def test_another_host_fetches_what_one_has_published(host, publish, address):
    one, two = host("one"), host("two")
    entry = publish(one, about={"signature_id": "s"})
    sent(address)
    assert two.candidates(entry.key).manifests == ()
    assert two.fetch(entry.key, "s").new == 1
    assert two.candidates(entry.key).manifests == (entry,)
    assert two.read(entry, ["program"]) == one.read(entry, ["program"])
    assert two.fetch(entry.key, "s").reason is None


@pytest.mark.parametrize("part", ["ac", "cas"])
def test_wrong_bytes_are_a_miss_and_the_next_publish_mends_them(
    host, publish, address, tmp_path, part
):
    entry = publish(host("one"))
    sent(address)
    for path in objects(tmp_path, part):
        path.write_bytes(b"\xff" * path.stat().st_size)
    two = host("two")
    fetched = two.fetch(entry.key, "")
    assert fetched.new == 0
    assert "digest" in fetched.reason
    assert two.candidates(entry.key).manifests == ()
    publish(two, blobs=host("one").read(entry, ["program", "text"]))
    sent(address)
    assert host("three").fetch(entry.key, "").new == 1


def test_junk_under_a_key_is_read_up_to_a_limit(host, publish, address, tmp_path, monkeypatch):
    entry = publish(host("one"))
    sent(address)
    limit, [manifest] = 4 << 20, objects(tmp_path, "ac")
    monkeypatch.setattr(copies, "MAX_KEY_BYTES", limit)
    for number in range(8):
        (manifest.parent / f"{number:064x}").write_bytes(bytes(1 << 20))
    before = PROCESS.metrics().remote_bytes_read
    fetched = host("two").fetch(entry.key, "")
    assert "was not read: more than 4 MB under one key" in fetched.reason
    assert PROCESS.metrics().remote_bytes_read - before <= limit + (1 << 20)


def test_an_entry_with_another_key_is_not_used(host, publish, address, tmp_path):
    entry = publish(host("one"))
    sent(address)
    other = tmp_path / "other"
    other.write_text(new_secret())
    other.chmod(0o600)
    fetched = host("two", key_file=other).fetch(entry.key, "")
    assert fetched.new == 0
    assert "signed with another key" in fetched.reason


def test_the_tier_needs_signatures_and_a_folder_that_can_be_written(host, caplog):
    caplog.set_level("DEBUG", "npugx_cache")  # a WARNING at the first time in a process only
    reason = host("one", trust="private", key_file=None).fetch("00" * 32, "").reason
    assert "needs a key" in reason
    assert reason in caplog.text
    host("two")
    reason = host("two", mode="readonly").fetch("00" * 32, "").reason
    assert "can't be kept (NPUGX_CACHE=readonly)" in reason


def test_a_tier_that_fails_is_left_alone_for_a_while(host, publish, address, tmp_path):
    entry = publish(host("one"))
    sent(address)
    for path in objects(tmp_path, "cas"):
        path.unlink()
        path.mkdir()  # there, and can't be read
    two = host("two")
    for _ in range(3):
        assert "the remote tier failed" in two.fetch(entry.key, "").reason
        two._opened_remote._fetches.clear()
    assert "is not asked for another" in two.fetch(entry.key, "").reason
    assert "is not asked for another" in connection_to(address).obstacle()


def test_a_tier_that_is_silent_is_given_up_soon(host, monkeypatch):
    monkeypatch.setattr(tier, "BUDGET", 0.25)
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections and says nothing
        silent = f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        one = host("one", remote=silent)
        reasons = [one.fetch(f"{number:064x}", "").reason for number in range(4)]
        asked, _ = server.accept()
        with asked:
            asked.setblocking(False)
            ended = False
            with contextlib.suppress(BlockingIOError):
                while asked.recv(4096):
                    pass
                ended = True
        assert not ended, "the request was waited for"
    assert reasons[:3] == ["the remote tier did not answer in 250 ms"] * 3
    assert "is not asked for another" in reasons[3]


def test_a_folder_that_is_a_tier_can_be_pruned_as_a_cache(
    host, publish, address, tmp_path, key_file
):
    one, two = host("one"), host("two")
    entries = [publish(one, key=f"{number:064x}") for number in range(3)]
    sent(address)
    settings = Settings(cache_dir=tmp_path / "remote", trust="signed", key_file=key_file)
    report = open_store(settings).prune(PrunePolicy(max_entries=1))
    assert (report.entries, report.stopped) == (2, None)
    fetched = [two.fetch(entry.key, "") for entry in entries]
    assert sum(each.new for each in fetched) == 1
    assert {each.reason for each in fetched} == {None}


def test_a_bad_entry_is_taken_out_of_the_tier(host, publish, address, tmp_path):
    one = host("one")
    entry = publish(one)
    sent(address)
    one.quarantine(entry, "its graph failed")
    sent(address)
    assert objects(tmp_path, "ac") == []
    assert host("two").fetch(entry.key, "").new == 0


def test_a_bad_entry_that_is_put_back_is_not_fetched_by_the_process_that_withdrew_it(
    host, publish, address, tmp_path
):
    one = host("one")
    entry = publish(one)
    sent(address)
    (path,) = [path for path in objects(tmp_path, "ac") if path.name == entry.entry]
    data = path.read_bytes()
    one.quarantine(entry, "its graph failed")
    sent(address)
    assert not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    # Another function of the process, or another instance of the module.
    assert host("one").fetch(entry.key, "").new == 0
    assert path.exists()


def test_of_two_hosts_one_holds_the_lease_until_its_entry_is_there(host, publish, address):
    one, two = host("one"), host("two")
    key = f"{0:064x}"
    one.fetch(key, "")
    two.fetch(key, "")
    with one.lock("ab" * 32, wait=None) as held:
        assert type(held).__name__ == "Locked"
        with two.lock("ab" * 32, wait=0.0) as answer:
            assert answer.held, answer
        entry = publish(one)
    two.fetch("77" * 32, "")  # a lookup of its own
    two.fetch(key, "")
    with two.lock("ab" * 32, wait=30.0, done=lambda: bool(two.candidates(key).manifests)) as answer:
        assert two.candidates(key).manifests == (entry,)


def test_a_local_hit_does_not_load_the_tier(host, publish, address, tmp_path, key_file):
    publish(host("one"))
    code = f"""
import sys
from pathlib import Path
from npugx_cache.config import Settings
from npugx_cache.counters import PROCESS
from npugx_cache.store import open_store
store = open_store(Settings(
    cache_dir=Path({str(tmp_path / "one")!r}), trust="signed", key_file=Path({str(key_file)!r}),
    remote={address!r},
))
(entry,) = store.candidates({f"{0:064x}"!r}).manifests
store.read(entry, ["program"])
store.record_hit(entry)
loaded = [name for name in sys.modules if "remote" in name or name in ("opendal", "asyncio")]
assert loaded == [], loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_process_that_ends_sends_what_it_has_published(host, address, tmp_path, key_file):
    code = f"""
from pathlib import Path
from npugx_cache.config import Settings
from npugx_cache.counters import PROCESS
from npugx_cache.store import Draft, open_store
store = open_store(Settings(
    cache_dir=Path({str(tmp_path / "one")!r}), trust="signed", key_file=Path({str(key_file)!r}),
    remote={address!r},
))
store.publish(Draft(key="0" * 64, identity="1d" * 16, kind="graph", cost_seconds=0.1, factors=(),
                    about={{}}, blobs={{"program": b"p"}}))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert host("two").fetch("0" * 64, "").new == 1


def test_a_child_of_a_process_that_asked_the_tier_goes_on_without(host, publish, address, python):
    program = """
import os, sys
from pathlib import Path
from npugx_cache.config import Settings
from npugx_cache.counters import PROCESS
from npugx_cache.store import open_store
from npugx_cache.store.remote import copies, tier
tier.BUDGET = 30.0
store = open_store(Settings(cache_dir=Path(sys.argv[1]), trust="signed",
                            key_file=Path(sys.argv[2]), remote=sys.argv[3]))
if sys.argv[4] == "asked":
    store.fetch("0" * 64, "")
child = os.fork()
if child == 0:
    answer = store.fetch("0" * 64, "")
    print(answer.new, answer.reason, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    one = host("one")
    publish(one)
    sent(address)
    root = one.root.parent
    for asked, expected in (("asked", "0 the remote tier can't be used: "), ("not", "1 None")):
        process = python(program, root / f"two-{asked}", root / "key", address, asked)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out.startswith(expected), out


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("s3://user:SECRET@bucket/x", "a password"),
        ("redis://:SECRET@host:1/0", "a password"),
        ("redis://user%3ASECRET@host/0", "a password"),
        ("redis://user:@SECRET@host/0", "a password"),
        ("s3://SECRET@bucket/x", "names a user"),
        ("s3://bucket?secret_access_key=SECRET", "options of s3:// are"),
        ("s3://bucket?SECRET", "options of s3:// are"),
        ("redis://host/0?SECRET", "options of redis:// are none"),
        ("redis://host/0#SECRET", "after a #"),
        ("s3://bucket?region=SECRET&region=x", "at most once"),
        ("s3://bucket?endpoint=http://u:SECRET@host", "endpoint is not"),
        ("s3://bucket?endpoint=u:SECRET@host", "endpoint is not"),
        ("s3://bucket?endpoint=//u:SECRET@host", "endpoint is not"),
        ("s3://bucket?endpoint=http%3A%2F%2Fu%3ASECRET%40host", "endpoint is not"),
        ("s3://bucket?endpoint=http://host/?X-Amz-Signature=SECRET", "endpoint is not"),
        ("s3://bucket?endpoint=http://host/%26X-Amz-Signature%3DSECRET", "endpoint is not"),
        ("webdav://host/f?endpoint=http:u:SECRET@x/", "endpoint is not"),
        ("s3://bucket?region=a:SECRET", "region is not made of"),
        ("s3://bucket?server_side_encryption=SECRET", "not AES256 or"),
        ("s3://bucket?enable_virtual_host_style=SECRET", "not true or false"),
        ("fs:///u:SECRET@host/x", "its folder"),
        ("fs:///a%0ASECRET", "its folder"),
        ("s3://bucket%0ASECRET/x", "not a name"),
        ("s3://bucket\nSECRET/x", "not a name"),
        ("s3://bucket:8/x", "no port"),
        ("redis://host:99999/0", "not a name"),
        ("s3:///x", "no bucket"),
        ("webdav:///x", "no host"),
        ("fs://host/x", "fs:///FOLDER"),
        ("redis://host/SECRET", "as a number"),
        ("redis://host/\u0661", "as a number"),
        ("http://SECRET", "expected one of"),
        ("redis:SECRET", "expected one of"),
        ("s3://bucket:SECRET", "not a name"),
    ],
)
def test_a_wrong_address_is_refused_and_not_quoted(text, why):
    with pytest.raises(OptionError, match=why) as refused:
        config.load(environ={"NPUGX_CACHE_REMOTE": text})
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://me@host:1/0/a", "redis://host:1/0/a"),
        ("redis://[::1]/2", "redis://[::1]/2"),
        ("s3://b.c/f?endpoint=http://h:1&region=x&server_side_encryption=aws:kms", "s3://b.c/f"),
        ("s3://b?enable_virtual_host_style=true", "s3://b"),
        ("webdav://me@host:1/a%20b?endpoint=http://other/dav/", "webdav://host:1/a b"),
        ("S3://b/f", "s3://b/f"),
        ("fs:///data/m\u00fcller, x", "fs:///data/m\u00fcller, x"),
    ],
)
def test_of_an_address_engine_host_bucket_and_folder_are_shown(text, shown):
    assert remote_address.parse(text).text == shown


def test_addresses_name_engines_and_their_options():
    def of(text):
        parsed = remote_address.parse(text)
        return parsed.engine, dict(parsed.options)

    assert of("s3://bucket/a/b?region=x") == (
        "s3",
        {"bucket": "bucket", "root": "/a/b", "region": "x"},
    )
    assert of("redis://me@host/3/a") == (
        "redis",
        {"endpoint": "tcp://host:6379", "db": "3", "root": "/a", "username": "me"},
    )
    assert of("webdav://host:8/a")[1] == {"endpoint": "https://host:8", "root": "/a"}
    assert of("obs://b?endpoint=https://o")[1] == {
        "endpoint": "https://o",
        "bucket": "b",
        "root": "/",
    }
