"""Columns that many models share, with their descriptions."""

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
STATUS: Column = ("hd_status", HASH, "Fingerprint of whether it exists.")
PARSED: tuple[Column, ...] = (
    ("_op", "varchar", "What happened: r in the snapshot, c inserted, u updated, d deleted, t gone with a truncate."),
    ("_is_deleted", "boolean", "Whether the row is gone after this change; then only its key is filled."),
    ("_valid_from", MOMENT, "When the source committed it."),
    ("_epoch", "integer", "Incarnation of the source."),
    ("_commit_lsn", "bigint", "Commit LSN of the transaction."),
    ("_seq", "bigint", "Position within the transaction."),
    ("_record_source", "varchar", "Where it comes from: source.schema.table."),
    ("_loaded_at", MOMENT, "When it was published in raw; loads go by it."),
)
