"""What the declarations of one source change in the models of others, such as those of a hub that they share."""

import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from lakehouse.declarations import Declarations
from scaffold.files import Change, plan
from scaffold.models import models_of

STAGE = re.compile(r"\bstg_\w+")


def elsewhere(project: Path, declared: Declarations, sources: Collection[str]) -> list[Change]:
    """The models of other sources that name stages of these, or will, and differ; read-only.

    They are `changed`, or edited and so `yours`. One that would name a stage that nobody has written yet, because its
    source is declared otherwise than scaffolded, is `behind`.
    """
    own = tuple(f"stg_{source}__" for source in sources)
    others = [source.name for source in declared.sources if source.name not in sources]
    changes = [change for name in others for change in plan(project, name, models_of(declared, name))]
    differing = [change for change in changes if change.text and change.kind in ("changed", "yours")]
    concerned = [c for c in differing if any(name in c.text + c.path.read_text() for name in own)]
    return [
        replace(change, kind="behind")
        if change.kind == "changed" and not_written(project, change) - {*sources}
        else change
        for change in concerned
    ]


def not_written(project: Path, change: Change) -> set[str]:
    """The sources of stages that a model names and that nobody has written."""
    written = {file.stem for file in (project / "models" / "stage").rglob("*.sql")}
    return {stage.removeprefix("stg_").partition("__")[0] for stage in {*STAGE.findall(change.text)} - written}
