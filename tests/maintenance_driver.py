"""One maintenance action in a process of its own, killed or stalled at a named point; see `tests.driver` for faults.

Arguments: settings as JSON in a file, the action, namespace, table, the policy as JSON, then faults.
"""

import json
import sys
from contextlib import closing
from pathlib import Path

from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.settings import load_settings
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from maintenance.runner.run import ACTIONS
from tests.driver import _inject


def main() -> None:
    """Runs it and prints the outcome as JSON."""
    place, action, namespace, table, policy, *faults = sys.argv[1:]
    settings = load_settings(**json.loads(Path(place).read_text()))
    for fault in faults:
        _inject(fault)
    with closing(Session(settings)) as session:
        name = TableName(namespace, table)
        outcome = ACTIONS[action](session, name, MaintenancePolicy.model_validate_json(policy))
    print(json.dumps(outcome.as_dict()))


if __name__ == "__main__":
    main()
