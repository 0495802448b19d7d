"""The lake's side of ingestion: rows as columns, data files, raw and meta tables, and the publish of them all."""
