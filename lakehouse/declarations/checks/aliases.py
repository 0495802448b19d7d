"""Names that a declaration gives columns in the lake: no two of them one name there, and none of a column of ours."""

from collections.abc import Iterator, Sequence

from lakehouse.declarations.declared import Column
from lakehouse.declarations.kinds import Kind
from lakehouse.declarations.metadata_columns import OF_KINDS
from lakehouse.declarations.policies import RawPolicy
from lakehouse.declarations.vault.problems import Problem


def alias_problems(kind: Kind, raw: RawPolicy, columns: Sequence[Column]) -> Iterator[Problem]:
    """Mistakes in `meta.raw.alias`; what the names of other columns of the source are is seen by ingestion."""
    landed = [column.name for column in columns if column.name not in raw.exclude]
    for name, alias in raw.alias.items():
        others = {raw.alias.get(other, other).lower(): other for other in landed if other != name}
        if not alias.strip():
            says = "a name is wanted, not an empty text"
        elif alias.lower() in OF_KINDS[kind]:
            says = f"{alias} is a column that ingestion adds: take another name"
        elif name in landed and (other := others.get(alias.lower())) is not None:
            says = f"column {other} is called so in the lake, where capitals count for nothing: take another name"
        else:
            continue
        yield ("raw", "alias", name), f"meta.raw.alias.{name}: {says}"
