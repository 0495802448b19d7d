"""How the values of topics are written, by the format that their tables declare."""

from collections.abc import Mapping

from ingestion.schema.problem import TableProblem
from ingestion.sources.kafka.json_values import JsonValues
from ingestion.sources.kafka.registry import SchemaRegistry, registry_of
from ingestion.sources.kafka.values import Values
from lakehouse.declarations import RawTable
from lakehouse.settings import Settings


def formats_of(settings: Settings, source: str) -> dict[str, Values]:
    """The formats that the settings of a source allow to read."""
    return _formats(registry_of(settings, source, settings.kafka(source)))


def _formats(registry: SchemaRegistry | None) -> dict[str, Values]:
    from ingestion.sources.kafka.avro_values import AvroValues

    found: dict[str, Values] = {"json": JsonValues()}
    return found if registry is None else found | {"avro": AvroValues(registry)}


def check_format(table: RawTable, known: Mapping[str, Values]) -> None:
    """Raises TableProblem for a table whose events nothing reads."""
    if table.raw.format not in known:
        variable = f"LAKEHOUSE_SOURCES__{table.source.upper()}__SCHEMA_REGISTRY__URL"
        says = f"meta.raw.format is {table.raw.format}, whose schemas are in a registry: set {variable}"
        raise TableProblem(table.source, table.name, says)
