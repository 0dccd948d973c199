"""Torch's switches, as a call reads them while another thread's export turns two of them off."""

from __future__ import annotations

import threading

import pytest
import torch

from npugx_cache.key import environment

MKLDNN = list(environment._SWITCHES).index("mkldnn")


@pytest.fixture
def mkldnn(monkeypatch):
    """What torch answers when it is asked for oneDNN: one value after another, then the last."""
    answers = []

    def ask():
        return answers.pop(0) if len(answers) > 1 else answers[0]

    readers = list(environment._READERS)
    answers.append(readers[MKLDNN]())
    readers[MKLDNN] = ask
    monkeypatch.setattr(environment, "_READERS", tuple(readers))
    monkeypatch.setattr(environment, "_seen", environment._read())
    return answers


def test_an_export_that_ends_between_two_readings_is_no_change(mkldnn):
    before = environment.call_state()
    mkldnn[:] = [False, True]
    assert environment.call_state() == before
    assert environment.call_state() == before


def test_what_the_user_turns_off_is_a_change_and_turned_on_again_none(mkldnn):
    before = environment.call_state()
    mkldnn[:] = [False]
    changed = environment.call_state()
    assert changed == (*before[:MKLDNN], False, *before[MKLDNN + 1 :])
    assert environment.call_state() == changed
    mkldnn[:] = [True]
    assert environment.call_state() == before


def test_switches_are_what_they_were_while_another_thread_exports():
    before, inside, seen = environment.call_state(), threading.Event(), threading.Event()
    rows = []

    class Exported(torch.nn.Module):
        def forward(self, x):
            inside.set()
            assert seen.wait(60)
            return x * 2

    example = (torch.ones(3),)
    exporting = threading.Thread(
        target=torch.export.export, args=(Exported(), example), kwargs={"strict": False}
    )
    exporting.start()
    assert inside.wait(60)
    rows = [torch._C._get_mkldnn_enabled(), environment.call_state()]
    seen.set()
    exporting.join()
    assert rows == [False, before], "an export leaves oneDNN on, or the call saw it turned off"
    assert environment.call_state() == before
