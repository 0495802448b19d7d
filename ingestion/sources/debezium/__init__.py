"""Debezium's topics of Postgres as a source: envelopes, joined to the transactions that they are of."""
