"""`ingest --once` of one source in its own process, killed at a named point.

A fault is `module:function:before` or `module:function:after`: SIGKILL just before the call, or when it has returned.
"""

import importlib
import json
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

from lakehouse.declarations import Declarations
from lakehouse.settings import load_settings


def _kill(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _inject(fault: str) -> None:
    module_name, function, when = fault.split(":")
    module = importlib.import_module(module_name)
    original = getattr(module, function)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            _kill()
        result = original(*args, **kwargs)
        _kill()
        return result

    setattr(module, function, wrapped)


def main() -> None:
    """Arguments: the plan's file, then faults."""
    plan = Path(sys.argv[1])
    settings_json, source = pickle.loads(plan.read_bytes())
    plan.unlink()
    for fault in sys.argv[2:]:
        _inject(fault)
    from ingestion import bring_up

    settings = load_settings(**json.loads(settings_json))
    report = bring_up(settings, Declarations(sources=(source,)), source.name)
    print(json.dumps({table.name: table.rows for table in report.tables}))


if __name__ == "__main__":
    main()
