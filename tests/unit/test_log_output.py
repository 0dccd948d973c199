"""What the environment asks of the log: `NPUGX_CACHE_LOG`, and names that are no settings."""

import io
import logging
import os
import sys
import threading

import pytest

from npugx_cache import cache_compile, config, events
from npugx_cache.events import log_output, progress


@pytest.fixture
def logger():
    logger = logging.getLogger("of a test")
    yield logger
    logger.setLevel(logging.NOTSET)
    logger.propagate = True
    logger.handlers.clear()


def show(logger, level):
    # Not in the fixture: pytest would take the lines, as it does those of all loggers it finds.
    logger.propagate = False
    log_output.show(logger, level)


@pytest.fixture
def terminal(monkeypatch):
    """A pseudo-terminal of 40 columns, and a function that reads what was written to it."""
    import fcntl
    import struct
    import termios

    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as stream:
        yield stream, lambda: os.read(ours, 4096).decode()
    os.close(ours)


def without_times(text):
    return [line.partition(" ")[2] for line in text.splitlines()]


def test_lines_from_the_level_on_are_shown(logger, capsys):
    show(logger, "info")
    logger.debug("one")
    logger.info("two")
    logger.warning("three")
    assert without_times(capsys.readouterr().err) == [
        "npugx_cache INFO two",
        "npugx_cache WARNING three",
    ]


def test_a_line_names_the_rank(logger, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    show(logger, "info")
    logger.info("two")
    assert without_times(capsys.readouterr().err) == ["npugx_cache[3] INFO two"]


def test_what_the_program_shows_is_not_shown_twice(logger, capsys):
    theirs = logging.StreamHandler(io.StringIO())
    theirs.setLevel(logging.WARNING)
    logger.addHandler(theirs)
    logger.addHandler(logging.NullHandler())
    show(logger, "info")
    logger.info("one")
    logger.warning("two")
    assert without_times(capsys.readouterr().err) == ["npugx_cache INFO one"]
    assert theirs.stream.getvalue() == "two\n"


def test_a_level_that_the_program_set_is_not_raised(logger):
    logger.setLevel(logging.DEBUG)
    show(logger, "warning")
    assert logger.level == logging.DEBUG


def test_in_a_terminal_progress_is_one_line(logger, terminal, monkeypatch):
    stream, written = terminal
    monkeypatch.setattr(sys, "stderr", stream)
    show(logger, "info")
    logger.info("f: still compiling after 10 s: tracing and lowering", extra=progress.PASSING)
    assert written() == "..ling after 10 s: tracing and lowering"
    logger.info("f: still compiling after 20 s: passes", extra=progress.PASSING)
    assert written().startswith("\r\x1b[K")
    logger.info("f: miss\x1b[2J")
    last = written()
    assert last.startswith("\r\x1b[K")
    assert last.endswith("INFO f: miss\N{REPLACEMENT CHARACTER}[2J\r\n")
    logger.info("f: hit")
    assert "\x1b" not in written()


def test_elsewhere_progress_is_lines(logger, capsys):
    show(logger, "info")
    for seconds in (10, 20):
        logger.info("still compiling after %d s", seconds, extra=progress.PASSING)
    assert [line[-4:] for line in capsys.readouterr().err.split("\n")] == ["10 s", "20 s", ""]


@pytest.fixture
def decorate(caplog, monkeypatch):
    """Decorate a function in a process that has not done so yet; the lines that this logs."""
    monkeypatch.setattr(events, "_heeded", threading.Lock())
    for name in config.unknown_variables():
        monkeypatch.delenv(name)
    known = logging.getLogger("npugx_cache")
    handlers, level = list(known.handlers), known.level

    def decorating(**environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        cache_compile(lambda x: x)
        return [record.getMessage() for record in caplog.records]

    yield decorating
    for handler in set(known.handlers) - set(handlers):
        known.removeHandler(handler)
    known.setLevel(level)


def test_an_unknown_variable_is_named_once(decorate):
    lines = decorate(NPUGX_CACHE_DRI="/x", NPUGX_ZZZ="1", NPUGX_TEST_N="1", NPUGX_STRESS_N="1")
    assert lines == [
        "NPUGX_CACHE_DRI is no setting of this release; did you mean NPUGX_CACHE_DIR?",
        "NPUGX_ZZZ is no setting of this release",
    ]
    assert decorate() == lines


def test_settings_are_not_named(decorate):
    assert decorate(NPUGX_CACHE_MAX_SIZE="1G", NPUGX_STATIC_KERNEL_WAIT="9") == []


def test_the_level_of_the_environment_holds_for_our_logger(decorate):
    assert decorate(NPUGX_CACHE_LOG="INFO") == []
    assert decorate() == []
    shown = [h for h in events.logger.handlers if isinstance(h, log_output.Lines)]
    assert [handler.level for handler in shown] == [logging.INFO]
    assert events.logger.isEnabledFor(logging.INFO)


def test_an_unknown_level_is_told_and_stops_nothing(decorate):
    assert decorate(NPUGX_CACHE_LOG="inof") == [
        "NPUGX_CACHE_LOG='inof': valid values are debug, info, warning, error; it is ignored"
    ]
