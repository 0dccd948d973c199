"""`prune --stale`: entries that the Python that runs the command could not use."""

from __future__ import annotations

import sys

import pytest

from npugx_cache.cli import versions


def test_what_files_say_is_what_a_worker_has_in_its_key():
    from npugx_cache.key.environment import factors

    torch = versions.installed_torch()
    assert torch is not None
    worker = versions.of_a_worker(torch)
    assert worker.items() <= dict(factors(frozenset())).items()


@pytest.fixture
def made_with(filled, publish):
    """Store an entry that this Python could use, but for what is named."""

    def publishing(digit, kind="graph", **changes):
        values = {**versions.of_a_worker(versions.installed_torch()), **changes}
        factors = tuple((name, value, "process") for name, value in values.items())
        return publish(digit, kind=kind, factors=factors, function="f")

    return publishing


@pytest.mark.parametrize("name", ["torch", "python", "format", "npugx_cache"])
def test_stale_removes_entries_of_other_versions_and_no_other(filled, run, made_with, name):
    ours, other = made_with("a"), made_with("b", **{name: "0 other"})
    bypass, kernels = (
        made_with("c", "bypass", **{name: "0 other"}),
        made_with("d", "kernels", format="1"),
    )
    before = {row.manifest.entry for row in filled.listing()}
    done = run("prune", "--stale", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    after = {row.manifest.entry for row in filled.listing()}
    assert before - after == {other, bypass}
    assert {ours, kernels} <= after


def test_stale_and_a_filter_must_both_hold(filled, run, made_with):
    made_with("a", torch="0 other")
    assert "removed 0 entries" in run("prune", "--stale", "--filter", "kind=bypass").stdout


def test_stale_without_a_torch_is_an_error(filled, monkeypatch):
    import click

    from npugx_cache.cli.pruning import only_stale

    monkeypatch.setattr(sys, "meta_path", [])
    with pytest.raises(click.ClickException, match="with the Python of the workers") as caught:
        only_stale()
    assert caught.value.exit_code == 2


def test_a_version_is_read_from_a_file_that_no_code_of_runs(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()
    (tmp_path / "torch/version.py").write_text(
        "raise SystemExit\n__version__ = '9.9+x'\ngit_version: str = 'abc'\ncuda = None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert versions.installed_torch() == ("9.9+x", "abc")
