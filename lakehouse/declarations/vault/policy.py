"""The policy of a raw table in the vault: its hub, references, links and satellites.

Read from `config.meta.vault` of the table's declaration. `lakehouse scaffold` writes the models from it.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from lakehouse.declarations.policies import LakeName, Policy


class HubPolicy(Policy):
    """The entity of a row."""

    name: LakeName
    extends: bool = Field(
        False, description="another table declares the hub; this one adds its keys, and has satellites of its own"
    )
    column: LakeName | None = Field(
        None, description="business key's name in the hub; by default the key column's, `id` as <hub>_id"
    )
    description: str = ""
    collision_code: str = Field("", description="tells this table's keys apart from equal keys of other systems")
    normalize: Literal["upper_trim"] | None = None
    blank: Literal["keep", "unknown", "error"] = "keep"


class ReferencePolicy(Policy):
    """Columns that refer to another hub."""

    columns: tuple[str, ...]
    hub: str | None = Field(None, description="by default the reference's own name")
    note: str = Field("", description="what it means that the reference is empty")
    collision_code: str | None = Field(
        None, description="of the keys it names; by default that of the hub's tables in the same source"
    )


class CodePolicy(Policy):
    """Columns that hold a code of a reference table. They stay attributes, wherever the declaration puts them."""

    columns: tuple[str, ...]
    reference_table: str | None = Field(None, description="by default the code's own name")


class LinkPolicy(Policy):
    """The table's hub and what it is linked with, in one combination at a time."""

    to: tuple[str, ...] = Field(description="names of references")
    description: str = ""
    effectivity: bool = True


class SatellitePolicy(Policy):
    """Columns that change together, or that are personal data."""

    columns: tuple[str, ...]
    description: str = ""
    personal: bool = False
    historized: bool = Field(True, description="false: the columns never change, nh_sat_<name> has one row per key")
    link: str | None = Field(None, description="the link that the columns describe; by default the row's own thing")


class EventPolicy(Policy):
    """Rows that happen once and never change: a non-historized link, with what they say in the same row."""

    name: LakeName
    to: tuple[str, ...] = Field((), description="names of references")
    columns: tuple[str, ...] = Field((), description="what the event says")
    description: str = ""


class JunctionPolicy(Policy):
    """Rows that only link others: a link of the references, with satellites of its own.

    Either the references are in the table's key, or the key has a column of its own and a row may be linked with others
    later.
    """

    name: LakeName
    to: tuple[str, ...] = Field(
        description="names of references; together with the rest of the table's key they are the link's"
    )
    description: str = ""


class VaultPolicy(Policy):
    """The whole of `config.meta.vault`. Short forms: a hub by its name, a reference by its column, a link by its
    references, a satellite by its columns."""

    hub: HubPolicy | None = None
    reference_table: LakeName | None = Field(None, description="codes without a hub: ref_<name>, under the natural key")
    children_of: str | None = Field(
        None, description="reference to the thing that has several rows here at a time: its satellites are multi-active"
    )
    event: EventPolicy | None = None
    link: JunctionPolicy | None = None
    none: str | None = Field(None, min_length=1, description="why the table has no place in the vault")
    references: dict[LakeName, ReferencePolicy] = Field(default_factory=dict)
    codes: dict[LakeName, CodePolicy] = Field(default_factory=dict)
    links: dict[LakeName, LinkPolicy] = Field(default_factory=dict)
    satellites: dict[LakeName, SatellitePolicy] = Field(default_factory=dict)
    ignored: tuple[str, ...] = Field((), description="columns without business meaning")
    track_deletes: bool = True
    track_mentions: bool = Field(False, description="rts_<hub>: in which loads each table mentioned a key of the hub")

    @field_validator("hub", mode="before")
    @classmethod
    def _hub(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("references", "codes", "links", "satellites", mode="before")
    @classmethod
    def _short(cls, value: Any, info: Any) -> Any:
        part = "to" if info.field_name == "links" else "columns"
        if value is None or not isinstance(value, Mapping):
            return {} if value is None else value
        return {name: _expanded(short, part) for name, short in value.items()}

    @property
    def is_modelled(self) -> bool:
        """Whether the table is in the vault."""
        return bool(self.forms)

    @property
    def forms(self) -> tuple[str, ...]:
        """What the table is: one of these, when the declaration is right."""
        forms = ("hub", "reference_table", "children_of", "event", "link")
        return tuple(form for form in forms if getattr(self, form) is not None)

    def reference_table_of(self, code: str) -> str:
        """The reference table that has the codes."""
        return self.codes[code].reference_table or code

    def hub_of(self, role: str) -> str:
        """The hub that a reference names."""
        return self.references[role].hub or role


def _expanded(short: Any, part: str) -> Any:
    if isinstance(short, str):
        return {part: (short,)}
    return {part: tuple(short)} if isinstance(short, list) else short
