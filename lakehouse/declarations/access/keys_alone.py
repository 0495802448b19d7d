"""Hubs and links that have no columns but keys, none of which is personal (V8): they pass no personal data on. Pure.

That holds for what the declarations make, as the scaffold wrote it. A model that is merely called so, or that somebody
has edited, may show any column. One that was written by a former declaration has the former key, which may be personal
by now. If it is not, the model passes nothing on either: declarations are read before the scaffold writes it anew, and
what it passes on once is remembered.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lakehouse.declarations.declared import Declarations
from lakehouse.declarations.vault.names import business_key, in_lake
from lakehouse.text.generated import is_own

_COLUMNS = re.compile(r"\bsrc_(?:nk|fk)=('[^'\n]*'|\[[^\]\n]*\])")


def keys_alone(
    nodes: Mapping[str, Mapping[str, Any]],
    declarations: Declarations,
    renamed: frozenset[str],
    hidden: frozenset[str],
) -> frozenset[str]:
    """The ids of such hubs and links; none with a column that is `renamed` personal data by what a model says, nor with
    one that is declared no more and is `hidden` anywhere."""
    declared = dict(_declared(declarations))

    def passes_nothing(node: Mapping[str, Any]) -> bool:
        written, keys = _written_columns(node), declared[node["name"]]
        return written is not None and (written <= keys - renamed or written.isdisjoint(hidden))

    return frozenset(key for key, node in nodes.items() if node["name"] in declared and passes_nothing(node))


def _declared(declarations: Declarations) -> Iterator[tuple[str, set[str]]]:
    """Each hub and link that the declarations make, with its columns."""
    for table in declarations.tables:
        if (vault := table.vault) is None:
            continue
        if vault.hub is not None and not vault.hub.extends:
            yield f"hub_{vault.hub.name}", _lower(business_key(table.raw, vault))
        if vault.hub is not None:
            for name, link in vault.links.items():
                yield f"link_{name}", {f"hk_{role}" for role in (vault.hub.name, *link.to)}
        if vault.link is not None:
            yield (
                f"link_{vault.link.name}",
                _lower((*(f"hk_{role}" for role in vault.link.to), *in_lake(table.raw, table.raw.key))),
            )


def _lower(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}


def _written_columns(node: Mapping[str, Any]) -> set[str] | None:
    """The columns that the scaffold's text names; None for another text, which may have any."""
    text = node.get("raw_code", "") + "\n"  # dbt strips it
    found = _COLUMNS.search(text) if is_own(text) else None
    return set(re.findall(r"'([^']*)'", found[1].lower())) if found else None
