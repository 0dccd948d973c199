"""`doctor` and `config` say which of the installed versions the cache does not serve."""

from __future__ import annotations

import json

import pytest

from npugx_cache.cli import doctoring, settings, versions

OLD = versions.Torch("2.9.1+cpu", "0" * 40)


@pytest.fixture
def installed(monkeypatch):
    def make(torch, torch_npu=None):
        monkeypatch.setattr(versions, "installed_torch", lambda: torch)
        monkeypatch.setattr(versions, "installed_torch_npu", lambda: torch_npu)

    return make


def test_what_is_served_is_not_mentioned(installed):
    installed(versions.Torch("2.13.0", "0" * 40), "2.13.0.post3")
    assert versions.unserved_versions(untested_torch=False) == {}


def test_a_torch_that_is_tried_is_not_mentioned(installed):
    installed(versions.Torch("2.16.1", "0" * 40))
    assert list(versions.unserved_versions(untested_torch=False)) == ["torch"]
    assert versions.unserved_versions(untested_torch=True) == {}


@pytest.mark.parametrize(("torch_npu", "fits"), [("2.10.0", False), ("unknown", True), ("2", True)])
def test_a_torch_npu_of_another_torch_is_named_and_what_is_no_version_is_not(
    installed, torch_npu, fits
):
    installed(versions.Torch("2.14.1", "0" * 40), torch_npu)
    named = versions.unserved_versions(untested_torch=False)
    assert named == ({} if fits else {"torch_npu": "torch_npu 2.10.0 is not for torch 2.14.1"})


@pytest.mark.parametrize("form", ["text", "json"])
def test_both_commands_say_so(installed, tmp_path, capsys, form):
    installed(OLD)
    for command in (doctoring.print_doctor, settings.print_config):
        command(str(tmp_path), form)
        printed = capsys.readouterr()
        if form == "json":
            reason = json.loads(printed.out)["unserved"]["torch"]
        else:
            said = printed.out + printed.err
            reason = next(line for line in said.splitlines() if line.startswith("not served"))
        assert "torch 2.9.1+cpu is not served: the cache works with torch 2.10" in reason
