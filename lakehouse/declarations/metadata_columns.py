"""The columns that ingestion adds to a source's own, in this order: names, Iceberg types and what they mean."""

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
