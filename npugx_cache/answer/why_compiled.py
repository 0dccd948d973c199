"""Says before a compile why the compile has to be. Only a miss loads this."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache import config, store
from npugx_cache.events import logger
from npugx_cache.private import recompile_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npugx_cache.config import Settings
    from npugx_cache.events import Refusal
    from npugx_cache.key.recipe import Recipe

_TOLD_AT_ONCE = 2  # reasons before the compile; the line after the compile has all


def tell(title: str, reasons: Sequence[str], last_cost: float | None) -> None:
    """Log the reasons at INFO, and the seconds that the last compile took."""
    why = "; ".join(reasons[:_TOLD_AT_ONCE])
    more = f"; and {len(reasons) - _TOLD_AT_ONCE} more" if reasons[_TOLD_AT_ONCE:] else ""
    last = "" if last_cost is None else f"; the last compile took {last_cost:.1f} s"
    logger.info("%s: compiling (%s%s)%s", title, why, more, last)


def tell_torch(recipe: Recipe, here: Iterable[str | None], refusals: Iterable[Refusal]) -> None:
    """Write to torch's log of recompiles, if graphs of this process do not fit the call.

    `here` has the entries of those graphs.
    """
    entries = set(here)
    if entries and (log := recompile_log.wanted()) is not None:
        refused = [str(each) for each in refusals if each.entry in entries]
        other = "no graph of this process accepts the call"
        recompile_log.tell(log, recipe.function.__code__, refused or [other])


def last_cost(recipe: Recipe, settings: Settings, opened: store.Store | None) -> float | None:
    """The seconds that the latest compile of this function took, as far as the store knows."""
    if opened is None:
        return None
    for each in opened.siblings(recipe.identity):
        return each.cost_seconds
    # The entries may be gone: pruned, or the folder is a new one.
    journal = store.journal_of(str(settings.cache_dir), config.state_folder())
    lines = (each for each in journal.load() if each.function == recipe.title)
    return next((each.seconds for each in lines if each.outcome == "miss"), None)
