"""What the pages name exists: links, commands with their options, variables, examples."""

import ast
import re
import shlex
import sys
from pathlib import Path

import click
import pytest

from npugx_cache import config
from npugx_cache.cli.commands import group

sys.path.insert(0, str(Path(__file__).parent))

from pages import FRAGMENT, PAGES, ROOT, anchors, command_lines, links, programs, quoted

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
_OF_TESTS = ("NPUGX_TEST_", "NPUGX_STRESS_")
_ENDS = ("|", "||", "&&", ";", ">", "<", ")")


def calls(line):
    """The arguments of each call of our command in a line of shell."""
    text = re.sub(r"\$\(|\)", " ; ", line.partition("  #")[0])
    words = shlex.shlex(text, posix=True, punctuation_chars=";|&><")
    words.whitespace_split, words.commenters = True, ""
    found, current = [], None
    for word in words:
        if word == "npugx-cache":
            current = []
            found.append(current)
        elif word in _ENDS:
            current = None
        elif current is not None:
            current.append(word)
    return found


def parse(arguments):
    """Parse the arguments down to the last command, and run nothing."""
    command, context = group, None
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context, info_name=command.name)
        _, rest, _ = command.make_parser(context).parse_args(list(arguments))
        if not rest:
            return
        _, command, arguments = command.resolve_command(context, rest)
    command.make_context(command.name, list(arguments), context)


def refusal(arguments):
    """Why the command line does not parse, or None. The bare name of a command is no line."""
    try:
        parse(arguments)
    except click.exceptions.Exit:  # --help
        return None
    except click.UsageError as error:
        named = isinstance(error, (click.MissingParameter, click.exceptions.NoArgsIsHelpError))
        return None if named and len(arguments) < 2 else error.format_message()
    return None


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_each_link_leads_to_a_page_and_a_heading(page):
    lost = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_each_command_line_parses(page):
    found = [call for line in command_lines(page) for call in calls(line)]
    refused = {" ".join(call): refusal(call) for call in found}
    assert {line: reason for line, reason in refused.items() if reason} == {}


def test_a_command_line_with_a_mistake_is_noticed():
    assert calls("a | npugx-cache ls -q --filter 'size>1M' | xargs npugx-cache rm --yes") == [
        ["ls", "-q", "--filter", "size>1M"],
        ["rm", "--yes"],
    ]
    assert "No such option" in refusal(["ls", "--fliter", "x"])
    assert "No such command" in refusal(["lst"])
    assert "Missing argument" in refusal(["diff", "A"])
    assert "No such command" in refusal(["key", "old"])


def test_the_pages_show_every_command():
    shown = {
        call[0] for page in PAGES for line in command_lines(page) for call in calls(line) if call
    }
    assert {*group.commands} - shown == set()


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_each_variable_of_ours_is_a_setting(page):
    named = {*re.findall(r"\bNPUGX_[A-Z_]*[A-Z]\b", page.read_text())}
    strange = {name for name in named - {*config.VARIABLES} if not name.startswith(_OF_TESTS)}
    if page.name == "troubleshooting.md":
        strange -= {"NPUGX_CACHE_DRI"}  # its log line shows what a typing mistake does
    assert strange == set()


def test_each_setting_is_on_the_page_of_settings():
    text = (ROOT / "docs/configuration.md").read_text()
    assert [name for name in config.VARIABLES if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_each_fragment_is_python_and_each_example_is_that_of_the_folder(page):
    for program in programs(page):
        ast.parse(program.text)
        assert program.mark in ("", FRAGMENT) or program.mark.startswith("examples/")
    for name, text in quoted(page):
        assert text == (ROOT / name).read_text(), name


def test_each_page_of_docs_is_on_the_site():
    navigation = (ROOT / "mkdocs.yml").read_text()
    docs = [page.name for page in PAGES if page.parent.name == "docs"]
    assert [name for name in docs if f": {name}\n" not in navigation] == []


RECIPES = sorted((ROOT / "examples/deploy").iterdir())


@pytest.mark.parametrize("recipe", RECIPES, ids=[path.name for path in RECIPES])
def test_each_recipe_is_on_a_page_and_names_what_is_there(recipe):
    text = recipe.read_text()
    assert f"<!-- examples/deploy/{recipe.name} -->" in (ROOT / "docs/deployment.md").read_text()
    assert {*re.findall(r"\bNPUGX_[A-Z_]*[A-Z]\b", text)} <= {*config.VARIABLES}
    # Lists of YAML and JSON are words of a command as well.
    plain = re.sub(r"[\[\],]|\S*/(?=npugx-cache)", " ", text)
    lines = [line for line in plain.splitlines() if "npugx-cache" in line]
    refused = {line: refusal(call) for line in lines for call in calls(line)}
    assert {line: reason for line, reason in refused.items() if reason} == {}
