"""Static kernels: CANN's tools are processes of their own, here simulated ones (op_compiler.py)."""

import fcntl
import gc
import logging
import os
import tempfile

import pytest

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)

import npu_sim
import torch
from simulated_cann import ON, PAST, limited, program, restart, run, said, selected, warned
from torch.fx.experimental.proxy_tensor import make_fx

from npugx_cache import cache_compile, config, readable_cache, store
from npugx_cache.backend import static_kernels
from npugx_cache.backend.compile import compile_graph
from npugx_cache.backend.options import parse
from npugx_cache.backend.static_kernels import installed, wanted
from npugx_cache.errors import OptionError
from npugx_cache.events import progress


def test_static_kernel_compile(cann):
    found = run(cann, 3, 4, 3)
    assert selected(found) == (1, True)  # for the shapes of the first capture, as the vendor does
    assert found.count("dump begin") == found.count("dump end") == 1
    (call,) = cann.calls()
    assert [each["op"] for each in call["operators"]] == ["add_", "mul", "relu_", "sum"]
    assert len(cann.installed()) == 1


def test_a_long_run_of_the_tool_is_told(cann, monkeypatch, caplog):
    monkeypatch.setattr(progress, "SLOW_SECONDS", 0.0)
    caplog.set_level(logging.INFO, logger="npugx_cache")
    run(cann, 3)
    lines = [text for _, text in said(caplog)]
    assert sum(": compiling: static kernels took " in line for line in lines) == 1


def test_kernels_are_found_again_wherever_the_store_is(cann, monkeypatch):
    run(cann, 3)
    restart(monkeypatch)
    elsewhere = cann.store.with_name("elsewhere")
    cann.store.rename(elsewhere)
    cann.store = elsewhere
    cann.tool.unlink()
    assert selected(run(cann, 3)) == (1, True)
    assert len(cann.calls()) == 1


def test_a_worker_that_captures_ahead_has_its_kernels_first(cann, monkeypatch):
    run(cann, 3)
    gc.collect()  # what was captured is recorded when the function goes
    restart(monkeypatch)
    cached = cache_compile(program, dynamic=True, options=ON, cache_dir=cann.store)
    with npu_sim.issued() as found:
        assert cached.warm().graphs == 1
    issued = [each.what for each in found]
    assert issued.index(PAST) < len(issued) - 1 - issued[::-1].index("mul")
    assert "replay" not in issued
    assert len(cann.calls()) == 1


def test_added_operators_are_part_of_the_key(cann, monkeypatch):
    source = cann.home / "opp" / "vendors" / "mine" / "op.py"
    source.parent.mkdir(parents=True)
    for number, text in enumerate(("a", "b", "a")):
        source.write_text(text)
        wanted.custom_operators.cache_clear()
        restart(monkeypatch)
        run(cann, 3)
        assert len(cann.calls()) == min(number + 1, 2)
    wanted.custom_operators.cache_clear()


def test_disable_static_kernel_compile_cache(cann, monkeypatch):
    run(cann, 3)
    restart(monkeypatch)
    run(cann, 3, disable_static_kernel_compile_cache=True)
    assert len(cann.calls()) == 2
    assert len(cann.packages()) == 1


def test_static_kernels_with_force_eager(cann):
    assert run(cann, 3, 4, 3, force_eager=True).count(PAST) == 2


def kernels_of_sizes(cann, **options):
    """How often kernels were made and used for calls with several sizes."""
    used = run(cann, 3, 4, 6, 3, force_eager=True, **options).count(PAST)
    return used, len(cann.calls())


@pytest.mark.parametrize(("sizes", "count"), [([3, 4], 2), ([4], 1), ([], 0)])
def test_vllm_aclnn_static_kernel_sym_range(cann, sizes, count):
    options = {"_vllm_aclnn_static_kernel_sym_range": sizes}
    assert kernels_of_sizes(cann, **options) == (count, count)


@pytest.mark.parametrize(("index", "sizes", "count"), [(2, [5], 3), (9, [3], 0)])
def test_vllm_aclnn_static_kernel_sym_index(cann, index, sizes, count):
    options = {"_vllm_aclnn_static_kernel_sym_range": sizes}
    options["_vllm_aclnn_static_kernel_sym_index"] = index
    assert kernels_of_sizes(cann, **options) == (count, count)


def counting(x, seen):
    seen.add_(1)
    return x * seen[:2]


def test_what_a_program_writes_to_is_written_once(cann):
    cached = cache_compile(counting, dynamic=True, options=ON, cache_dir=cann.store)
    x, seen = torch.ones(3, 2).npu(), torch.zeros(6).npu()[1:5]
    for call in (1, 2):
        assert torch.equal(cached(x, seen), x * call)
    assert seen.tolist() == [2] * 4
    assert cann.asked


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("fail", "op_compiler failed with 1: E40021: no template fits"),
        ("hang", "op_compiler took longer than 1 s"),
        ("nothing", "op_compiler has made no package"),
        ("broken", ".run failed with 3: no space left"),
    ],
)
def test_a_failure_costs_the_kernels_alone(cann, monkeypatch, caplog, does, reason):
    monkeypatch.setenv("OP_COMPILER_DOES", does)
    if does == "hang":
        monkeypatch.setenv("NPUGX_STATIC_KERNEL_WAIT", "1")
    found = run(cann, 3, 4)
    assert selected(found) == (0, False)
    assert "replay" in found
    assert warned(caplog, reason)
    assert not cann.installed()


def test_a_tool_that_hangs_is_ended(cann, monkeypatch):
    monkeypatch.setenv("OP_COMPILER_DOES", "hang")
    monkeypatch.setenv("NPUGX_STATIC_KERNEL_WAIT", "2")
    run(cann, 3)
    for call in cann.calls():  # none if it took so long to start
        with pytest.raises(ProcessLookupError):
            os.kill(call["pid"], 0)


def test_without_the_tool(cann, caplog):
    cann.tool.unlink()
    found = run(cann, 3, 4)
    assert "replay" in found
    assert warned(caplog, "op_compiler is not on the PATH")


def test_a_damaged_package_never_runs(cann, monkeypatch, caplog):
    run(cann, 3)
    (package,) = cann.packages()
    package.chmod(0o600)
    package.write_bytes(package.read_bytes().replace(b"exit $?", b"exit 7 "))
    restart(monkeypatch)
    found = run(cann, 3)
    assert selected(found) == (1, True)
    assert len(cann.calls()) == 2  # compiled anew
    assert [text for _, text in said(caplog) if "digest mismatch" in text]
    assert len(cann.packages()) == 1


def test_a_package_that_others_could_have_written_never_runs(cann, monkeypatch, caplog):
    run(cann, 3)
    (package,) = cann.packages()
    package.chmod(0o666)
    restart(monkeypatch)
    run(cann, 3)
    assert len(cann.calls()) == 2
    assert [text for _, text in said(caplog) if "trusted" in text]


def test_a_package_is_signed_where_entries_are(cann, monkeypatch, caplog):
    for number, calls in ((1, 1), (1, 1), (2, 2)):
        key = cann.store.with_name(f"key{number}")
        key.touch(mode=0o600)
        key.write_text(f"{number}" * 64)
        monkeypatch.setenv("NPUGX_CACHE_KEY_FILE", str(key))
        restart(monkeypatch)
        run(cann, 3)
        assert len(cann.calls()) == calls
    assert [text for _, text in said(caplog) if "not trusted" in text]


def test_packages_are_not_shared_under_group_trust(cann, monkeypatch, caplog):
    monkeypatch.setenv("NPUGX_CACHE_TRUST", "group")
    assert selected(run(cann, 3)) == (1, True)
    assert not cann.packages()
    assert [text for _, text in said(caplog) if "not under group" in text]


def test_folders_of_killed_processes_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, alive, young = (tmp_path / f"npugx-installed-{name}" for name in "kay")
    for folder in (killed, alive, young):
        folder.mkdir()
    for folder in (killed, alive):
        os.utime(folder, (0, 0))
    held = os.open(alive, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    installed._remove_abandoned()
    os.close(held)
    assert sorted(tmp_path.iterdir()) == sorted([alive, young])


@pytest.mark.parametrize(
    ("options", "said_so"),
    [
        ({"disable_static_kernel_compile_cache": True}, "only with static_kernel_compile=True"),
        ({"_vllm_aclnn_static_kernel_sym_index": 1}, "only with static_kernel_compile=True"),
        ({"_vllm_aclnn_static_kernel_sym_range": [1]}, "only with static_kernel_compile=True"),
        ({**ON, "_vllm_aclnn_static_kernel_sym_index": 1}, "only with force_eager=True"),
        ({**ON, "_vllm_aclnn_static_kernel_sym_range": [1]}, "only with force_eager=True"),
        ({**ON, "dump_tensor_data": True}, "exclude each other"),
    ],
)
def test_what_has_no_effect_is_refused(options, said_so):
    with pytest.raises(OptionError, match=said_so):
        parse(options)


def test_a_backend_that_captures_nothing_refuses_the_option():
    with pytest.raises(OptionError, match="no effect with 'aot_eager'"):
        parse(ON, "aot_eager")


def test_core_limits_and_static_kernels(cann):
    assert selected(run(cann, 3, function=limited)) == (1, True)


def test_without_a_cache_each_process_compiles(cann, monkeypatch):
    x, y = torch.ones(3, 2).npu(), torch.ones(5).npu()
    with torch.no_grad():
        graph = make_fx(program, tracing_mode="symbolic")(x, y)
    for _ in range(2):  # the second finds what it needs in use
        assert torch.equal(compile_graph(graph, None, ON)(x, y), program(x, y))
        assert len(cann.calls()) == 1
    restart(monkeypatch)
    assert torch.equal(compile_graph(graph, None, ON)(x, y), program(x, y))
    assert len(cann.calls()) == 2


def reading(x, y):
    return x * y.sum().item()


def test_what_can_not_be_run_once_more_has_no_kernels(cann, caplog):
    found = run(cann, 3, function=reading, force_eager=True)
    assert "dump begin" not in found
    assert warned(caplog, "it can't be run once more")


def test_an_entry_of_kernels_is_listed_and_read(cann):
    run(cann, 3)
    opened = store.open_store(config.load(cache_dir=cann.store))
    kinds = {item.manifest.kind: item.manifest for item in opened.listing()}
    assert sorted(kinds) == ["graph", "kernels"]
    assert kinds["kernels"].about["signature"] == "4 operators: add_, mul, relu_, sum"
    (path,) = cann.store.glob(f"v1/ac/*/*/{kinds['kernels'].entry}")
    text = readable_cache(path, print_output=False)
    assert '"op": "mul"' in text


def test_the_last_process_to_end_uninstalls(cann, monkeypatch):
    run(cann, 3)
    first = static_kernels.INSTALLED
    restart(monkeypatch)
    run(cann, 3)
    first._uninstall()
    assert len(cann.installed()) == 1
    static_kernels.INSTALLED._uninstall()
    assert not cann.installed()
