"""Kafka as a source: events that are appended, read by ranges of offsets."""
