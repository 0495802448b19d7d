"""The folders of a dbt project that dbt reads: those that its dbt_project.yml names, or dbt's own."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from lakehouse.declarations.lines import PROJECT_FILE

DEFAULTS = {
    "model-paths": "models",
    "macro-paths": "macros",
    "test-paths": "tests",
    "seed-paths": "seeds",
    "snapshot-paths": "snapshots",
    "analysis-paths": "analyses",
    "function-paths": "functions",
    "docs-paths": None,  # all of them
}
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a worker looks before each load


def project_folders(project_dir: Path) -> list[str]:
    """As they are written, models first; dbt's own where the file cannot be read, which others say."""
    try:
        content = (project_dir / PROJECT_FILE).read_bytes()
        stated = yaml.load(content, Loader=_LOADER)
    except (OSError, yaml.YAMLError):
        stated = None
    return list(dict.fromkeys(_folders(stated if isinstance(stated, dict) else {})))


def _folders(stated: dict[str, object]) -> Iterator[str]:
    for key, default in DEFAULTS.items():
        paths = stated.get(key)
        named = [path for path in paths if isinstance(path, str)] if isinstance(paths, list) else []
        yield from named or ([default] if default else [])
