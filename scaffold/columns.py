"""Columns that many models share, with their descriptions."""

from lakehouse.declarations import PARSED_METADATA
from scaffold.text import MOMENT, Column

HASH = "varchar"
EVENT: tuple[Column, ...] = (
    ("load_date", MOMENT, "When it came into the lake."),
    ("applied_date", MOMENT, "When the source committed it."),
    ("source_seq", "varchar", "Position among all changes of the source; sorts like them."),
    ("record_source", "varchar", "Where it comes from: source.schema.table."),
)
VALIDITY: tuple[Column, ...] = (
    ("source_seq_to", "varchar", "Position of the change that took over; null if none has."),
    ("valid_from", MOMENT, "First moment it was so."),
    ("valid_to", MOMENT, "When the next row took over; null if none has."),
    ("is_current", "boolean", "Whether it is the newest row of its key."),
)
DELETED: Column = ("is_deleted", "boolean", "Whether the source deleted it here.")
CODE: Column = ("collision_code", "varchar", "Tells equal keys of different systems apart.")
STATUS: Column = ("hd_status", HASH, "Fingerprint of whether it exists.")
PARSED: tuple[Column, ...] = tuple((name, kind, text) for name, (kind, text) in PARSED_METADATA.items())
