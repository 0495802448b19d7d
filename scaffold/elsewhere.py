"""What the declarations of one source change in the models of others, such as those of a hub that they share."""

from collections.abc import Collection
from pathlib import Path

from lakehouse.declarations import Declarations
from scaffold.files import Change, plan
from scaffold.models import models_of


def elsewhere(project: Path, declared: Declarations, sources: Collection[str]) -> list[Change]:
    """The models of other sources that differ from the declarations: `changed`, or edited and so `yours`; read-only."""
    others = [source.name for source in declared.sources if source.name not in sources]
    changes = [change for name in others for change in plan(project, name, models_of(declared, name))]
    return [change for change in changes if change.kind == "changed" or (change.kind == "yours" and change.text)]
