"""`npugx-cache readable`."""

from __future__ import annotations

import os
import shutil

import click

from npugx_cache.cli import output
from npugx_cache.cli.naming import entry_meant
from npugx_cache.cli.opening import Failure, WrongInput, open_existing
from npugx_cache.errors import CorruptEntry, EntryNotFound, OptionError, StoreError


def print_readable(
    entry: str, directory: str | None, file: str | None, section: str, color: str, *, pager: bool
) -> None:
    text = _read(entry, directory, file, section)
    if file is not None:
        click.echo(f"written to {output.in_line(file)}")
        return
    terminal = output.on_terminal()
    coloured = color == "always" or (
        color == "auto" and terminal and not os.environ.get("NO_COLOR")
    )
    if coloured:
        text = highlight(text)
    if terminal and pager and text.count("\n") >= shutil.get_terminal_size().lines:
        click.echo_via_pager(text, color=coloured)
        return
    # click strips colours if stdout is no terminal, unless `color` is True.
    click.echo(text, nl=not text.endswith("\n"), color=color != "never")


def _read(entry: str, directory: str | None, file: str | None, section: str) -> str:
    from npugx_cache.entry.readable import readable_cache

    if "/" not in entry:
        store = open_existing(directory, "readonly")
        if store is None:
            raise WrongInput(f"{entry}: there is no cache yet. Name another one with --dir")
        entry = entry_meant(entry, store.overview()[0])
    try:
        return readable_cache(
            entry, print_output=False, file=file, section=section, cache_dir=directory
        )
    except EntryNotFound as error:
        raise WrongInput(f"{error}. `npugx-cache ls` shows what there is") from None
    except OptionError as error:
        raise WrongInput(f"{error}. Correct or unset it") from None
    except (CorruptEntry, StoreError) as error:
        raise Failure(str(error)) from None
    except OSError as error:
        if file is None:
            raise Failure(f"{entry}: {error}") from None
        reason = f"--file {file}: {error.strerror}. Name a file that can be written"
        raise WrongInput(reason) from None


def highlight(text: str) -> str:
    """Colour Python code with terminal codes, without changing its lines."""
    from rich.console import Console
    from rich.syntax import Syntax

    console = Console(force_terminal=True, color_system="standard", no_color=False)
    code = Syntax(text, "python", theme="ansi_dark", background_color="default").highlight(text)
    with console.capture() as capture:
        # soft_wrap: rich would otherwise cut and pad lines to the width of the terminal.
        console.print(code, soft_wrap=True, end="")
    return capture.get()
