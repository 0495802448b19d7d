"""`python -m maintenance.actions.docs` writes the table of actions to docs/operations.md."""

import re

from lakehouse.settings import load_settings
from maintenance.actions.registry import ACTIONS

PAGE = "docs/operations.md"
HEADING = ("action", "part of the policy", "engine", "does", "takes care of")
_TABLE = re.compile(rf"^\| {HEADING[0]} \| {HEADING[1]} \|.*?(?=\n\n)", re.DOTALL | re.MULTILINE)


def with_actions(page: str) -> str:
    """The page with the current table of actions."""
    rows = [(f"`{a.name}`", f"`{a.part}`", a.engine, a.does, a.spares) for a in ACTIONS]
    table = "\n".join(f"| {' | '.join(row)} |" for row in (HEADING, ("---",) * len(HEADING), *rows))
    return _TABLE.sub(lambda _: table, page)


if __name__ == "__main__":
    page = load_settings().project_dir / PAGE
    page.write_text(with_actions(page.read_text()))
