"""A `lakehouse` command in a process of its own, with a test's settings and declarations instead of a project's.

Arguments: the file of the plan, then those of the command.
"""

import json
import pickle
import sys
from pathlib import Path

import lakehouse.declarations
import lakehouse.declarations.dbt.manifest
import lakehouse.settings


def main() -> None:
    """Commands import by name what is replaced here, so nothing of theirs may be imported before."""
    plan = Path(sys.argv.pop(1))
    settings_json, source, manifest = pickle.loads(plan.read_bytes())
    plan.unlink()
    settings = lakehouse.settings.load_settings(**json.loads(settings_json))
    declarations = lakehouse.declarations.Declarations(sources=(source,))
    lakehouse.settings.load_settings = lambda **_: settings
    lakehouse.declarations.load_declarations = lambda _: declarations
    lakehouse.declarations.declarations_from = lambda *_: declarations
    lakehouse.declarations.dbt.manifest.load_manifest = lambda _: manifest
    from lakehouse_cli.main import main as run

    run()


if __name__ == "__main__":
    main()
