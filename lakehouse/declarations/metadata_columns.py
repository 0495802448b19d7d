"""The columns that ingestion adds to a source's own, and parsed in turn: names, types and what they mean, in order."""

METADATA: dict[str, tuple[str, str]] = {
    "_op": ("string", "r snapshot row, c insert, u update, d delete, t truncate"),
    "_epoch": ("int", "incarnation of the source"),
    "_commit_lsn": ("long", "commit LSN of the transaction"),
    "_seq": ("long", "position within the transaction"),
    "_xid": ("long", "transaction id, widened to 64 bits"),
    "_committed_at": ("timestamptz", "commit time"),
    "_ingested_at": ("timestamptz", "when ingestion wrote the row"),
    "_unchanged": ("list<string>", "TOASTed columns the update did not carry"),
    "_old_key": ("string", "JSON of the previous key on the c of a key change"),
}
METADATA_COLUMNS = tuple(METADATA)
OF_TOPICS: dict[str, tuple[str, str]] = {
    "_topic": ("string", "topic of the event"),
    "_topic_partition": ("int", "partition of the topic"),  # `_partition` is reserved by Iceberg
    "_offset": ("long", "offset in the partition"),
}
OF_KINDS: dict[str, dict[str, tuple[str, str]]] = {
    "postgres": METADATA, "kafka": METADATA | OF_TOPICS, "debezium": METADATA | OF_TOPICS,
}  # fmt: skip

MOMENT = "timestamp(6) with time zone"
PARSED_METADATA: dict[str, tuple[str, str]] = {  # Trino types
    "_op": ("varchar", "What happened: r in the snapshot, c inserted, u updated, d deleted, t gone with a truncate."),
    "_is_deleted": ("boolean", "Whether the row is gone after this change; then only its key is filled."),
    "_valid_from": (MOMENT, "When the source committed it."),
    "_epoch": ("integer", "Incarnation of the source."),
    "_commit_lsn": ("bigint", "Commit LSN of the transaction."),
    "_seq": ("bigint", "Position within the transaction."),
    "_record_source": ("varchar", "Where it comes from: source.schema.table."),
    "_loaded_at": (MOMENT, "When it was published in raw; loads go by it."),
}

RESERVED_BY_ICEBERG = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)
"""Iceberg's own metadata columns: Spark refuses to read a table that has a column with one of these names."""
