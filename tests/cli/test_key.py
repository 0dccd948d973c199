from __future__ import annotations


def test_a_new_key_is_for_its_owner_only_and_signs_a_cache(run, tmp_path):
    path = tmp_path / "keys"
    done = run("key", "new", path)
    assert done.returncode == 0, done.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().strip() not in done.stdout
    code = 0
    for _ in range(2):
        shown = run("ls", NPUGX_CACHE_KEY_FILE=str(path), NPUGX_CACHE_TRUST="signed")
        code |= shown.returncode
    assert code == 0


def test_an_existing_file_is_never_overwritten(run, tmp_path):
    path = tmp_path / "key"
    path.write_text("precious")
    done = run("key", "new", path)
    assert done.returncode == 2
    assert str(path) in done.stderr
    assert path.read_text() == "precious"


def test_two_keys_differ(run, tmp_path):
    for name in ("a", "b"):
        run("key", "new", tmp_path / name)
    assert (tmp_path / "a").read_text() != (tmp_path / "b").read_text()
