"""pgoutput (text mode) to columns: bytes of the slot in, one Arrow table per relation out.

`streamed` makes whole transactions of those that came in blocks before they ended, as protocol version 1 has them.
`decoder` follows transactions and relations through the stream, `rows` turns the messages of one relation into
rows, `cells` finds and copies the values of one column, `images` digests rows where they are asked for, `wire` reads
integers at many positions at once.
Every step works on arrays; only relation and truncate messages, which are few, are read one by one.
"""

from ingestion.sources.postgres.pgoutput.decoder import Decoder, widened
from ingestion.sources.postgres.pgoutput.model import DecodeError
from ingestion.sources.postgres.pgoutput.streamed import whole_transactions

__all__ = ["DecodeError", "Decoder", "whole_transactions", "widened"]
