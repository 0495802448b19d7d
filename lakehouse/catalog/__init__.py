"""The Iceberg catalog: rows of a Postgres database, and what PyIceberg lacks for them."""
