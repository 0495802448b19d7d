"""`ingest --once` of one source in its own process, killed or stalled at a named point.

A fault is `module:function:before` or `module:function:after`: SIGKILL just before the call, or when it has returned;
`module:function:stall` is SIGSTOP before the call, until somebody sends SIGCONT; a number after it, such as
`…:after:2`, says which call; `module:name:set:7` gives a constant another value. After `--dagster` a materialization
of the raw assets does the work instead, as one started from the UI would; after `--follow` a follower does it, beside
others after `--share`. After `--mirror` it is a refresh of the mirrors, after `--move` a move to the declared kind;
after `--resume=TABLE` or `--replay=TABLE` that is done with the table.
"""

import importlib
import itertools
import json
import os
import pickle
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from lakehouse.declarations import Declarations
from lakehouse.settings import Settings, load_settings


def _kill(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _inject(fault: str) -> None:
    module_name, function, when, *nth = fault.split(":")
    module = importlib.import_module(module_name)
    original = getattr(module, function)
    if when == "set":
        return setattr(module, function, int(nth[0]))
    calls = itertools.count(1)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if next(calls) != int(nth[0] if nth else 1):
            return original(*args, **kwargs)
        if when == "stall":
            os.kill(os.getpid(), signal.SIGSTOP)
            return original(*args, **kwargs)
        if when == "before":
            _kill()
        result = original(*args, **kwargs)
        _kill()
        return result

    setattr(module, function, wrapped)


def main() -> None:
    """Arguments: the plan's file, then faults, and `--dagster`."""
    plan = Path(sys.argv[1])
    settings_json, *sources = pickle.loads(plan.read_bytes())
    plan.unlink()
    for fault in sys.argv[2:]:
        if not fault.startswith("--"):
            _inject(fault)
    settings = load_settings(**json.loads(settings_json))
    declarations, source = Declarations(sources=tuple(sources)), sources[0]
    if "--dagster" in sys.argv:
        sys.exit(_materialize(settings, declarations))
    from ingestion import bring_up, follow_sources, move_source, refresh_mirrors, replay, resume

    for name, command in (("--resume", resume), ("--replay", replay)):
        if tables := [given.partition("=")[2] for given in sys.argv if given.startswith(f"{name}=")]:
            return print(command(settings, declarations, source.name, tables).cut_position)
    if "--mirror" in sys.argv:
        return print(refresh_mirrors(settings, declarations, source.name))
    if "--follow" in sys.argv:
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        names, share = [source.name for source in sources], "--share" in sys.argv
        return follow_sources(settings, declarations, names, stop, share=share)
    report = (move_source if "--move" in sys.argv else bring_up)(settings, declarations, source.name)
    print(json.dumps({table.name: table.rows for table in report.tables}))


def _materialize(settings: Settings, declarations: Declarations) -> int:
    import dagster as dg

    from orchestration.factory import raw_assets
    from orchestration.resources import Lake

    class PlannedLake(Lake):
        def settings(self) -> Settings:
            return settings

        def declarations(self) -> Declarations:
            return declarations

    result = dg.materialize(
        [raw_assets(declarations.sources[0], {})], resources={"lake": PlannedLake()}, raise_on_error=False
    )
    for event in result.all_events:
        if event.is_step_failure:
            print(event.step_failure_data.error.to_string(), file=sys.stderr)
    return 0 if result.success else 1


if __name__ == "__main__":
    main()
