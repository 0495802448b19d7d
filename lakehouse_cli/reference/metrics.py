"""The pages of metrics and of metadata columns."""

from lakehouse.declarations.metadata_columns import METADATA, OF_TOPICS, PARSED_METADATA
from lakehouse.metrics import METRICS
from lakehouse_cli.reference.text import code, markdown_table

METRICS_PAGE = """# Metrics

<!-- written by `make docs` from lakehouse/metrics.py -->

The follower, the worker and `lakehouse watch` serve them in Prometheus' text format;
[progress and metrics](../operations.md#progress-and-metrics)
tells where, and which dashboard and alert rules use them.

"""
COLUMNS_PAGE = """# Metadata columns

<!-- written by `make docs` from lakehouse/declarations/metadata_columns.py -->

Every raw table has the source's columns, and then these. (`_epoch`, `_commit_lsn`, `_seq`) is unique in a table and is
the order in which the source committed. [Types](../types.md) has the types of the source's own columns.

"""
TOPICS = """
## Of topics

The raw tables of sources in Kafka, Debezium's topics among them, also have the place of each event. Parsed tables do
not have these columns.

"""
PARSED = """
## Of parsed tables

`parsed.parsed_<source>__<table>` has the declared columns, with one row per change, and then these:

"""


def metrics_page() -> str:
    """Every metric with its labels."""
    rows = [(code(name), m.kind, ", ".join(map(code, m.labels)), m.help) for name, m in METRICS.items()]
    return METRICS_PAGE + markdown_table(("metric", "kind", "labels", "meaning"), rows)


def columns_page() -> str:
    """What ingestion and parsed add to a source's columns."""
    raw, of_topics, parsed = (
        markdown_table(
            ("column", "type", "meaning"), ((code(name), kind, said) for name, (kind, said) in columns.items())
        )
        for columns in (METADATA, OF_TOPICS, PARSED_METADATA)
    )
    return COLUMNS_PAGE + raw + TOPICS + of_topics + PARSED + parsed
