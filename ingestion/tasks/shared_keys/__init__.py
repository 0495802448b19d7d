"""Several rows on one key within a transaction: possible where no unique index checks the declared key at once.

Under a DEFERRABLE key, or a key that no index enforces, an UPDATE that swaps or shifts keys, or an INSERT before the
DELETE that makes room for it, puts a second row on a key for a while. The stream then mixes the events of both rows,
and the newest event of the key may be the delete of the row that made room, while the other remains. `enforced` says
which tables need care, `hold` keeps their rows until the transaction has ended, `row_events`
assigns the events to the rows.
"""
