"""Which column of the source a value of the stream belongs to: the stream names columns, Postgres numbers them."""
