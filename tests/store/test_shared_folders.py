"""All stores of a process share the open folders of a cache, and notice what happens to them."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import threading
from pathlib import Path

import pytest

from npugx_cache.config import Settings
from npugx_cache.store import Published, Unusable, open_store
from npugx_cache.store.io import syscalls
from npugx_cache.store.io.tree import Tree

KEY = f"{0:064x}"


def opened(path, **settings):
    return open_store(Settings(cache_dir=path, **settings))


def held(path):
    """How many descriptors of this process are of the folder, or of folders in it."""
    gc.collect()
    links = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            links.append(each.readlink())
    return sum(link.is_relative_to(path) for link in links)


def use(store):
    assert len(store.candidates(KEY).manifests) == 1
    assert store.siblings("1d" * 16)


@pytest.fixture
def filled(root, open_at, publish):
    publish(open_at())
    return root


def test_stores_hold_what_one_store_holds(filled):
    first = opened(filled)
    use(first)
    of_one = held(filled)
    assert 0 < of_one <= 8
    stores = [first, *(opened(filled, strict=True, lock_wait=float(n)) for n in range(50))]
    for store in stores:
        use(store)
    assert held(filled) == of_one
    del stores, store
    use(first)
    assert held(filled) == of_one
    del first
    assert held(filled) == 0


def test_threads_that_open_a_store_at_once_hold_what_one_store_holds(filled):
    kept = [opened(filled)]
    use(kept[0])
    of_one, start = held(filled), threading.Barrier(16)
    del kept[:]

    def work():
        start.wait(60)
        kept.append(opened(filled))
        use(kept[-1])

    threads = [threading.Thread(target=work) for _ in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(kept) == 16
    assert held(filled) == of_one


def test_a_folder_stays_open_while_another_thread_opens_the_store(filled, monkeypatch):
    tree, other = Tree(str(filled), "private"), Tree(str(filled), "private")
    step = syscalls.step
    tree.open()
    other.open()

    def opened_at_once(name, above):
        monkeypatch.setattr(syscalls, "step", step)
        tree._root = other._root  # the thread found no open folder when it looked
        return step(name, above)

    monkeypatch.setattr(syscalls, "step", opened_at_once)
    assert tree.hold_part("v1").is_open()


def test_folders_of_other_caches_are_their_own(filled, tmp_path, publish):
    first, other = opened(filled), opened(tmp_path / "other")
    assert other.candidates(KEY).manifests == ()
    publish(other, 1)
    assert other.candidates(f"{1:064x}").manifests
    assert first.candidates(f"{1:064x}").manifests == ()


def test_a_folder_made_anew_is_noticed_by_all_stores(filled, draft):
    stores = [opened(filled) for _ in range(3)]
    for store in stores:
        use(store)
    of_one = held(filled)
    shutil.rmtree(filled)
    assert stores[0].candidates(KEY).manifests == ()
    assert isinstance(stores[1].publish(draft()), Published)
    for store in [*stores, opened(filled)]:
        use(store)
    assert held(filled) <= of_one + 2


def test_a_folder_that_lost_trust_is_refused_to_a_new_store(filled):
    first = opened(filled)
    use(first)
    filled.chmod(0o777)
    assert isinstance(opened(filled), Unusable)
    filled.chmod(0o700)
    use(opened(filled))


def test_a_child_leaves_the_folders_of_its_parent_alone(filled, draft):
    stores = [opened(filled) for _ in range(3)]
    for store in stores:
        use(store)
    of_one = held(filled)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            use(stores[0])
            del stores, store  # closes what the child holds
            assert held(filled) == 0
            use(opened(filled))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert held(filled) == of_one
    for store in stores:
        use(store)


def test_folders_that_other_code_closed_are_opened_again_and_once(filled):
    """The system gives out the numbers of closed descriptors again, also to the same folder."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            stores = [opened(filled) for _ in range(3)]
            for store in stores:
                use(store)
            of_one = held(filled)
            for _ in range(3):
                os.closerange(3, 256)
                for store in [*stores, opened(filled)]:
                    use(store)
                    use(opened(filled))
                assert held(filled) == of_one
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_forked_while_another_thread_looks_for_a_folder_opens_stores(filled):
    from npugx_cache.store.io import tree

    taken, done = threading.Event(), threading.Event()

    def hold():
        with tree._looking:
            taken.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(60)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            use(opened(filled))
            code = 0
        finally:
            os._exit(code)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
