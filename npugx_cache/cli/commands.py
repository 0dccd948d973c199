"""The commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from npugx_cache.cli.opening import Failure, duration, size
from npugx_cache.config import EvictionPolicy
from npugx_cache.entry.view import sections

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_DIR = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False),
    help="The cache folder; by default the one that a worker with this environment uses.",
)
_FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="json is for programs: bytes, seconds and times since the epoch.",
)
_FILTER = click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="TEST",
    help="Only entries that pass: NAME OPERATOR VALUE, e.g. 'size>1M', 'used>30d', 'cost>10s', "
    "'function=*Decoder*', 'backend=inductor', 'input=float32[4', 'reason=dropout'.",
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
_YES = click.option(
    "--yes",
    is_flag=True,
    help="Don't ask before chosen entries, or all, are removed. Needed without a terminal.",
)


def _examples(*lines: str) -> str:
    """The end of a help text. The first line keeps click from joining the others."""
    return "\n".join(["\b", "Examples:", *(f"  npugx-cache {line}" for line in lines)])


def _entry_ids(
    context: click.Context, parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    from npugx_cache.cli.completing import entry_ids

    return entry_ids(context, parameter, begun)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_examples("ls", "--dir /mnt/graphs stats", "ls --help"),
)
@click.version_option(package_name="npugx_cache", prog_name="npugx-cache")
@_DIR
@click.pass_context
def group(context: click.Context, directory: str | None) -> None:
    """Look at and clean up a folder of compiled graphs.

    Exit codes: 0 done, 1 the cache is bad or can't do that, 2 wrong input.
    """
    if directory is not None:
        # What each command has for --dir if its own --dir is not given.
        context.default_map = {name: {"directory": directory} for name in group.commands}


@group.command(
    "ls",
    epilog=_examples(
        "ls --sort saved --limit 10",
        "ls --filter 'function=forward' --filter 'used>30d'",
        "ls -q --filter backend=inductor | xargs npugx-cache rm --yes",
    ),
)
@_DIR
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv"]),
    help="json and csv are for programs: bytes, seconds and times since the epoch.  "
    "[default: table]",
)
@click.option("-q", "--quiet", is_flag=True, help="Print whole ids and nothing else.")
@click.option(
    "--sort",
    type=click.Choice(["used", "size", "created", "hits", "name", "cost", "saved"]),
    default="used",
    show_default=True,
    help="Sort by this, largest or latest first, and names from A to Z.",
)
@click.option("--reverse", is_flag=True, help="Turn the order of --sort round.")
@_FILTER
@click.option("--limit", type=click.IntRange(min=1), help="Show at most so many.")
def list_entries(
    directory: str | None,
    form: str | None,
    quiet: bool,
    sort: str,
    reverse: bool,
    filters: tuple[str, ...],
    limit: int | None,
) -> None:
    """List the entries, what they hold and how much time they saved.

    In INPUTS, `*` stands for a size or a number for which the graph is symbolic.
    """
    from npugx_cache.cli.listing import Choice, print_listing

    if quiet and form is not None:
        raise click.UsageError("--quiet prints ids alone: leave --format out")
    choice = Choice(filters=filters, sort=sort, reverse=reverse, limit=limit)
    print_listing(directory, "ids" if quiet else form or "table", choice)


@group.command(
    epilog=_examples(
        "readable 96f5bd2c64a6",
        "readable 96f5bd2c64a6 --section guards",
        "readable Decoder.forward > forward.py && python forward.py",
    )
)
@click.argument("entry", shell_complete=_entry_ids)
@_DIR
@click.option("--file", type=click.Path(dir_okay=False), help="Write to this file instead.")
@click.option(
    "--section",
    type=click.Choice(sections.SECTIONS),
    default=sections.OVERVIEW,
    show_default=True,
    help="overview: summary, graph, and guards of the call; all: what is stored, with nothing "
    "folded; the others are parts of these.",
)
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="auto colours only on a terminal, and not if NO_COLOR is set.",
)
@click.option("--no-pager", is_flag=True, help="On a terminal, print a long text without a pager.")
def readable(
    entry: str, directory: str | None, file: str | None, section: str, color: str, no_pager: bool
) -> None:
    """Show what ENTRY holds as one Python file.

    `python FILE` runs the graph on random inputs of the recorded sizes.
    ENTRY is an id as `ls` shows it, a unique prefix of one, a path, or the name of a function with
    one entry.
    """
    from npugx_cache.cli.reading import print_readable

    print_readable(entry, directory, file, section, color, pager=not no_pager)


@group.command(epilog=_examples("show 96f5bd2c64a6", "show Decoder.forward --format json"))
@click.argument("entry", shell_complete=_entry_ids)
@_DIR
@_FORMAT
def show(entry: str, directory: str | None, form: str) -> None:
    """Show what is known of ENTRY, and its captured graphs.

    ENTRY is an id as `ls` shows it, a unique prefix of one, or the name of a function with one
    entry.
    """
    from npugx_cache.cli.showing import print_entry

    print_entry(entry, directory, form)


@group.command(
    epilog=_examples("diff 96f5bd2c64a6 1c2204d7e9aa", "diff Encoder.forward Decoder.forward")
)
@click.argument("first", shell_complete=_entry_ids)
@click.argument("second", shell_complete=_entry_ids)
@_DIR
@_FORMAT
def diff(first: str, second: str, directory: str | None, form: str) -> None:
    """Show how the entry SECOND differs from FIRST.

    Old and new values of the key, and conditions.

    FIRST and SECOND are ids as `ls` and `misses` show them, unique prefixes of them, or names of
    functions with one entry.
    """
    from npugx_cache.cli.differing import print_diff

    print_diff(first, second, directory, form)


@group.command(epilog=_examples("stats", "stats --since 1d --format json", "stats --reset"))
@_DIR
@_FORMAT
@click.option(
    "--since",
    type=duration,
    metavar="TIME",
    help="Count misses and bypasses of so long, e.g. 12h or 7d; by default of 30 days.",
)
@click.option(
    "--reset",
    is_flag=True,
    help="Then count from zero, and forget the noted misses. Last uses of entries stay.",
)
def stats(directory: str | None, form: str, since: float | None, reset: bool) -> None:
    """Count entries, bytes, hits and misses.

    Also what hits saved and misses cost, and the most frequent reasons. Hits and misses are those
    of this user on this host. Sizes are exact and include blobs that no entry names.
    """
    from npugx_cache.cli.statistics import print_stats

    print_stats(directory, form, since, reset=reset)


@group.command(epilog=_examples("misses --since 1d", "misses --function 'Decoder.*' --limit 5"))
@_DIR
@click.option(
    "--since",
    type=duration,
    metavar="TIME",
    help="Only those of so long, e.g. 12h or 7d; by default of 30 days.",
)
@click.option(
    "--function",
    metavar="GLOB",
    help="Only functions with such a name, e.g. 'decode' or '*Llama*', as in `ls --filter`.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Show at most so many.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="json and csv are for programs: seconds, and times since the epoch.",
)
def misses(
    directory: str | None, since: float | None, function: str | None, limit: int | None, form: str
) -> None:
    """List the lookups that were no hits, and why.

    The newest comes first. A miss has compiled; a bypass runs without the cache, and is listed once
    per process. The processes of this user on this host write this journal some seconds later, and
    when they end.
    """
    from npugx_cache.cli.missing import print_misses

    print_misses(directory, form, since=since, function=function, limit=limit)


@group.command(
    epilog=_examples(
        "report", "report --out /tmp/graphs --filter 'function=*Decoder*'", "report --limit 20"
    )
)
@_DIR
@_FORMAT
@click.option(
    "--out",
    type=click.Path(),
    default="npugx-cache-report",
    show_default=True,
    help="The folder for the pages. An earlier report there is replaced; a folder with anything "
    "else is refused.",
)
@_FILTER
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="Pages for at most so many entries, the last used first.",
)
def report(
    directory: str | None, form: str, out: str, filters: tuple[str, ...], limit: int
) -> None:
    """Write pages about the cache, to be opened in a browser.

    The store over time, its entries with their graphs, guards and code, how entries of one function
    differ, and the noted misses. The pages need no network and no server. They show what the
    entries show: names, source lines and paths of the code that was compiled.
    """
    from npugx_cache.cli.listing import Choice
    from npugx_cache.cli.reporting import print_report

    print_report(directory, out, form, Choice(filters=filters, limit=limit))


@group.command(epilog=_examples("verify", "verify --repair"))
@_DIR
@_FORMAT
@click.option("--repair", is_flag=True, help="Move bad files to the quarantine folder.")
def verify(directory: str | None, form: str, repair: bool) -> None:
    """Read every file and say what is damaged.

    Exits with 1 if anything is damaged and was not repaired.
    """
    from npugx_cache.cli.verifying import print_verify

    left = print_verify(directory, form, repair=repair)
    if left is not None:
        raise Failure(left)


@group.command(epilog=_examples("doctor", "doctor --dir /mnt/graphs", "doctor --format json"))
@click.argument("folder", required=False, type=click.Path(file_okay=False))
@_DIR
@_FORMAT
def doctor(folder: str | None, directory: str | None, form: str) -> None:
    """Test whether a folder can hold a cache, and show versions.

    Tests the file system, renames, locks, clock, space and trust of FOLDER or --dir; the default is
    the folder that a worker with this environment uses. Exits with 1 if the folder is unfit.
    """
    from npugx_cache.cli.doctoring import print_doctor

    if None not in {folder, directory} and folder != directory:
        raise click.UsageError(f"FOLDER is {folder} and --dir is {directory}: give one of them")
    bad = print_doctor(folder or directory, form)
    if bad is not None:
        raise Failure(bad)


@group.command(
    epilog=_examples(
        "triage model:decode --inputs model:example",
        "triage model:net --inputs example.pt --calls 5 --out issue",
        "triage serve.py -- --batch 4",
    )
)
@click.argument("target", metavar="TARGET")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENT...]")
@click.option(
    "--inputs",
    metavar="NAME",
    help="The arguments of a call: module:name of a value or of a function that makes one, or a "
    ".pt file. A value is a tuple of arguments, such a tuple and a dict, or one argument.",
)
@click.option(
    "--calls",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="So many calls in each stage; later ones show what replays do.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Random inputs and numbers of each stage start from it.",
)
@click.option(
    "--timeout",
    type=duration,
    default="10m",
    show_default=True,
    metavar="TIME",
    help="The longest that one stage may take.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    default="npugx-cache-triage",
    show_default=True,
    help="The folder to attach to an issue.",
)
@click.option("--all", "all_stages", is_flag=True, help="Don't stop at the first finding.")
@click.option("--save-inputs", is_flag=True, help="Also write the values of the inputs to it.")
@_FORMAT
def triage(
    target: str,
    arguments: tuple[str, ...],
    inputs: str | None,
    calls: int,
    seed: int,
    timeout: float,
    out: str,
    all_stages: bool,
    save_inputs: bool,
    form: str,
) -> None:
    """Find the layer that makes a result wrong or fails.

    Runs TARGET in fresh processes: eager, by torch.compile, and cached without and with passes and
    capture, cold and restored. Compares each with eager, and says in which layer the first
    difference or failure lies. TARGET is module:callable, or a script (.py) that calls cached
    functions. The cache in use is not touched. Exits with 1 if anything differs, fails or is not
    cached.
    """
    from npugx_cache.cli.triaging import Asked, print_triage

    if inputs is not None and target.endswith(".py"):
        raise click.UsageError("a script makes its own inputs: leave --inputs out")
    if not target.endswith(".py") and ":" not in target:
        raise click.UsageError(f"{target!r} is neither module:callable nor a script (.py)")
    if arguments and not target.endswith(".py"):
        raise click.UsageError(f"{target!r} is no script, and takes no arguments: see --inputs")
    asked = Asked(target, arguments, inputs, calls, seed, timeout, out, save_inputs, all_stages)
    if not print_triage(asked, form):
        raise click.exceptions.Exit(1)


@group.command(
    epilog=_examples(
        "--dir /opt/graphs warm model:decode --inputs 'int64[1, 16]' --inputs 'int64[1, 32]'",
        "warm model:net --inputs model:examples",
        "warm serve.py -- --warm-up-only",
    )
)
@click.argument("target", metavar="TARGET")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENT...]")
@click.option(
    "--inputs",
    multiple=True,
    metavar="INPUTS",
    help="The arguments of a call, as `ls` shows them: 'x: float32[4, 8], 3'. Or module:name of a "
    "value, or of a function that makes one or yields one for each call, or a .pt file. A value is "
    "a tuple of arguments, such a tuple and a dict, or one argument. Give it once for each call.",
)
@_DIR
@_FORMAT
def warm(
    target: str,
    arguments: tuple[str, ...],
    inputs: tuple[str, ...],
    directory: str | None,
    form: str,
) -> None:
    """Fill the cache before workers start.

    Compiles what calls of TARGET need, in a process of its own, and stores it. TARGET is
    module:callable, of which nothing is run, or a script (.py) that calls cached functions. Exits
    with 1 if anything is refused, fails or is not stored.
    """
    from npugx_cache.cli.warming import Asked, print_warm

    script = target.endswith(".py")
    if inputs and script:
        raise click.UsageError("a script makes its own inputs: leave --inputs out")
    if not script and ":" not in target:
        raise click.UsageError(f"{target!r} is neither module:callable nor a script (.py)")
    if arguments and not script:
        raise click.UsageError(f"{target!r} is no script, and takes no arguments: see --inputs")
    if script and not Path(target).is_file():
        raise click.UsageError(f"there is no script {target!r} here")
    fault = print_warm(Asked(target, arguments, inputs, directory), form)
    if fault is not None:
        raise Failure(fault)


@group.command("dir", epilog=_examples("dir", "dir --format json"))
@_DIR
@_FORMAT
def print_dir(directory: str | None, form: str) -> None:
    """Print the folder in use, and on stderr who chose it."""
    from npugx_cache.cli.settings import print_folder

    print_folder(directory, form)


@group.command("config", epilog=_examples("config", "config --format json"))
@_DIR
@_FORMAT
def show_config(directory: str | None, form: str) -> None:
    """Print every setting, its value and who set it.

    Variables that begin with NPUGX_ and are no settings are named.
    """
    from npugx_cache.cli.settings import print_config

    print_config(directory, form)


@group.command(
    "export",
    epilog=_examples(
        "export graphs.tar",
        "export - --filter kind=graph | ssh HOST npugx-cache import -",
    ),
)
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@_DIR
@_FORMAT
@_FILTER
def export_entries(file: str, directory: str | None, form: str, filters: tuple[str, ...]) -> None:
    """Write entries to FILE, a tar file for another host.

    `-` stands for standard output. The bytes of FILE depend only on the entries. `tar -xf FILE -C
    FOLDER` makes a cache as well, such as in a container image.
    """
    from npugx_cache.cli.bundles import export_bundle
    from npugx_cache.cli.filters import parse

    refused = export_bundle(file, directory, form, [parse(text) for text in filters])
    if refused is not None:
        raise Failure(refused)


@group.command("import", epilog=_examples("import graphs.tar", "import graphs.tar --sign"))
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@_DIR
@_FORMAT
@click.option("--sign", is_flag=True, help="Vouch for FILE: sign its entries with our key.")
def import_entries(file: str, directory: str | None, form: str, sign: bool) -> None:
    """Add the entries of FILE to the cache, after verifying each.

    `-` stands for standard input. Under private or group trust, workers run them like your own
    entries: import only what you would run.
    """
    from npugx_cache.cli.bundles import import_bundle

    refused = import_bundle(file, directory, form, sign=sign)
    if refused is not None:
        raise Failure(refused)


@group.group(epilog=_examples("key new ~/graphs.key"))
def key() -> None:
    """Keys for signed caches (NPUGX_CACHE_KEY_FILE)."""


@key.command("new", epilog=_examples("key new ~/graphs.key"))
@click.argument("file", type=click.Path())
def new_key(file: str) -> None:
    """Write a new signing key to FILE, which must not exist yet."""
    from npugx_cache.cli.keys import make_key

    make_key(file)


@group.command(
    epilog=_examples(
        "prune --older-than 30d --max-size 10G --dry-run",
        "prune --filter 'function=Decoder.*' --filter hits=0",
        "prune --stale --yes",
    )
)
@_DIR
@_FORMAT
@click.option(
    "--max-size", type=size, metavar="SIZE", help="Keep at most this much, e.g. 500M or 10G."
)
@click.option(
    "--older-than",
    type=duration,
    metavar="TIME",
    help="Remove entries that were not used for this long, e.g. 12h or 30d.",
)
@click.option("--max-entries", type=click.IntRange(min=0), help="Keep at most so many entries.")
@click.option(
    "--policy",
    "weigh",
    type=click.Choice(get_args(EvictionPolicy)),
    default="lru",
    show_default=True,
    help="What goes first: the least recently used, or (cost) also the large and cheaply compiled.",
)
@click.option(
    "--refusals",
    is_flag=True,
    help="Remove the notes of calls that can't be cached, so that they are tried again.",
)
@_FILTER
@click.option(
    "--stale",
    is_flag=True,
    help="Only entries of another torch, Python, npugx_cache or format than the Python that runs "
    "this command would use.",
)
@click.option("--all", "everything", is_flag=True, help="Remove every entry.")
@_DRY_RUN
@_YES
def prune(  # click passes them by name
    directory: str | None,
    form: str,
    max_size: int | None,
    older_than: float | None,
    max_entries: int | None,
    weigh: EvictionPolicy,
    refusals: bool,
    filters: tuple[str, ...],
    stale: bool,
    everything: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Remove entries by limits or filters.

    Limits remove the least recently used entries first. Files that no entry needs any more go too.
    """
    from npugx_cache.cli.filters import parse
    from npugx_cache.cli.pruning import only_stale, print_prune
    from npugx_cache.store import PrunePolicy

    policy = PrunePolicy(
        max_size=max_size,
        max_entries=max_entries,
        older_than=older_than,
        weigh=weigh,
        everything=everything,
        bypasses=refusals,
    )
    limits = not policy.limits_nothing
    chosen = bool(filters) or stale
    if not (limits or chosen or refusals or everything):
        raise click.UsageError(
            "nothing says what to remove: give --max-size, --max-entries, --older-than, "
            "--filter, --stale, --refusals or --all"
        )
    if everything and (limits or chosen or refusals):
        raise click.UsageError("--all removes everything: leave the other limits out")
    if refusals and (limits or chosen):
        raise click.UsageError("--refusals removes refusals alone: leave the other limits out")
    if chosen and limits:
        raise click.UsageError(
            "--filter and --stale choose the entries: leave --max-size, --max-entries and "
            "--older-than out (--filter 'used>30d' chooses by age)"
        )
    tests = [parse(text) for text in filters] + ([only_stale()] if stale else [])
    stopped = print_prune(directory, form, policy=policy, tests=tests, dry_run=dry_run, asked=yes)
    if stopped is not None:
        raise Failure(stopped)


@group.command("rm", epilog=_examples("rm 96f5bd2c64a6", "rm 96f5 1c22 --yes"))
@click.argument("entries", nargs=-1, required=True, metavar="ENTRY...", shell_complete=_entry_ids)
@_DIR
@_FORMAT
@_DRY_RUN
@_YES
def remove_entries(
    entries: tuple[str, ...], directory: str | None, form: str, dry_run: bool, yes: bool
) -> None:
    """Remove single entries.

    ENTRY is an id as `ls` shows it, or a unique prefix of one. Files that no entry needs any more
    go too.
    """
    from npugx_cache.cli.pruning import print_removal

    stopped = print_removal(entries, directory, form, dry_run=dry_run, asked=yes)
    if stopped is not None:
        raise Failure(stopped)
