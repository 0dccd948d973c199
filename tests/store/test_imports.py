from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "store"
SOURCES = sorted(FOLDER.rglob("*.py"))
FORBIDDEN = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "torch", "imp", "runpy"}
CODE = {"eval", "exec", "compile", "__import__"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_nothing_in_the_store_can_run_what_it_reads(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & FORBIDDEN
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in FORBIDDEN
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in CODE


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_only_the_syscalls_module_touches_the_stores_files(path):
    if path.name in {"syscalls.py", "derived.py", "probe.py"}:
        return
    used = set(re.findall(r"\bos\.(\w+)\(", path.read_text()))
    asked = {"getpid", "geteuid", "getegid", "getgroups", "getgrouplist", "uname"}
    assert used <= {*asked, "fsdecode", "register_at_fork"}


def test_importing_the_store_loads_nothing_heavy(python):
    code = """if True:
        import sys
        import npugx_cache.store.folder_store, npugx_cache.store.tiers
        import npugx_cache.store.content.blobs
        heavy = {'torch', 'filelock', 'diskcache', 'sqlite3', 'click', 'platformdirs', 'rich',
                 'pickle', 'logging', 'numpy'}
        print(sorted(heavy & set(sys.modules)))
    """
    out, err = python(code).communicate(timeout=30)
    assert (out.strip(), err) == ("[]", "")


def test_a_hit_loads_no_lock_no_database_and_no_logging(store, publish, python):
    manifest = publish(store)
    code = """if True:
        import sys
        from pathlib import Path
        from npugx_cache.config import Settings
        from npugx_cache.store import open_store
        store = open_store(Settings(cache_dir=Path(sys.argv[1])))
        manifest, = store.candidates(sys.argv[2]).manifests
        assert len(store.read(manifest, ['program', 'text'])) == 2
        store.record_hit(manifest)
        heavy = {'filelock', 'diskcache', 'sqlite3', 'platformdirs', 'pickle', 'logging'}
        print(sorted(heavy & set(sys.modules)))
    """
    out, err = python(code, store.root, manifest.key).communicate(timeout=30)
    assert (out.strip(), err) == ("[]", "")


def test_every_exported_name_is_there_and_an_unknown_one_is_an_attribute_error():
    import npugx_cache.store as package

    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError):
        package.nothing  # noqa: B018
