"""`python -m npugx_cache.triage PLAN`: one stage of a triage."""

from __future__ import annotations

import sys
from pathlib import Path


def main(file: str) -> int:
    from npugx_cache.triage import rerouted, targets, ways
    from npugx_cache.triage.events import Events
    from npugx_cache.triage.plan import Plan
    from npugx_cache.triage.recorder import Recorder

    plan = Plan.read(Path(file))
    events = Events(Path(plan.events))
    runs = ways.of(plan, events)
    recorder = Recorder(plan, events, runs)
    rerouted.reroute(runs.adapt_recipe, recorder.run)
    try:
        targets.run(plan)
    except targets.WrongTarget as error:
        events.write("wrong target", reason=str(error))
        return 2
    finally:
        events.write("done", calls=recorder.calls)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
