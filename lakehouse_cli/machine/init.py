"""`lakehouse init`: a project of the user's own."""

from pathlib import Path
from typing import Annotated

import typer

from lakehouse.text.shown import say
from lakehouse_project import create_project

NEXT = """
Next, in that folder: name your database in lakehouse.toml as [sources.shop], then

  lakehouse up               start the servers of this machine
  lakehouse scaffold shop    propose a declaration, and write the models
  lakehouse prepare shop     publication and grants
  lakehouse dev              follow the source, load, and show it

Without a database at hand, try a sample: `lakehouse samples retail`, then `lakehouse scaffold retail`."""


def init(folder: Annotated[Path, typer.Argument(help="Where to; it is empty, or does not exist yet.")]) -> None:
    """Make a project of your own: settings, a dbt project for declarations and models, Dagster's workspace."""
    for path in create_project(folder):
        say(f"new     {folder / path}")
    for line in NEXT.splitlines():
        say(line)
