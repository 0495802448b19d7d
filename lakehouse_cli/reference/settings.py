"""The page of settings: every variable, its default and its meaning, as the models have them."""

import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lakehouse.settings import (
    DebeziumSettings,
    KafkaSettings,
    MailSettings,
    RegistrySettings,
    Settings,
    SourceSettings,
)
from lakehouse_cli.reference.text import code, markdown_table
from lakehouse_stack.control.endpoints import endpoints
from lakehouse_stack.home.config import StackSettings

INTRODUCTION = """# Settings

<!-- written by `make docs` from lakehouse/settings/ and lakehouse_stack/home/config.py -->

`LAKEHOUSE_*` environment variables override secret files ([one file per setting](../security.md#secrets-in-files)),
which override `lakehouse.toml` (in the folder that `LAKEHOUSE_PROJECT_DIR` names, else in the
working directory; or at `LAKEHOUSE_CONFIG`), which overrides what
`lakehouse up` wrote to the home. In TOML, `LAKEHOUSE_TRINO__HOST` is `[trino] host`. `LAKEHOUSE_STACK_*` are read from
the environment only. A variable or key that is misspelt is an error that names the nearest one.
A URL that is set and empty counts as unset, also where a file below says another one: a compose file can leave a
variable empty, but not away. So does a source of which nothing else is set.
[Speed, freshness and memory](../operations.md#speed-freshness-and-memory) explains what to weigh.
"""
MORE = {
    "sources.kafka": "[Topics in Kafka](../operations.md#topics-in-kafka) shows how its tables are declared.",
    "sources.debezium": "[Topics of Debezium](../operations.md#topics-of-debezium) shows how its tables are declared.",
    "serve": "[Reading with other engines](../reading.md) shows what clients do with it.",
    "dagster": "[Security](../security.md#the-ui) tells who may call the UI.",
    "alerts": "[Alerts](../operations.md#alerts) lists what is told, and when.",
    "metrics": "[Progress and metrics](../operations.md#progress-and-metrics) tells what is at these ports.",
    "spark": "[Security](../security.md#spark) tells what the secret protects.",
    "trino": "[Logins to Trino](../operations.md#logins-to-trino) describes the roles.",
    "s3": "[TLS](../security.md#tls) tells when `ca` is needed.",
}
UNITS = ((1024**3, "GiB"), (1024**2, "MiB"))


def settings_page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "## General\n", _table(Settings, "LAKEHOUSE_", _written())]
    parts += [
        "## Sources\n",
        _said(SourceSettings, "sources"),
        _table(SourceSettings, "LAKEHOUSE_SOURCES__<SOURCE>__", {}),
        "### Of kind kafka\n",
        _said(KafkaSettings, "sources.kafka"),
        _table(KafkaSettings, "LAKEHOUSE_SOURCES__<SOURCE>__", {}),
        _said(RegistrySettings, ""),
        _table(RegistrySettings, "LAKEHOUSE_SOURCES__<SOURCE>__SCHEMA_REGISTRY__", {}),
        "### Of kind debezium\n",
        _said(DebeziumSettings, "sources.debezium"),
        _table(DebeziumSettings, "LAKEHOUSE_SOURCES__<SOURCE>__", {}),
    ]
    for name, model in sections():
        parts += [
            f"## {name}\n",
            _said(model, name),
            _table(model, f"LAKEHOUSE_{name.upper()}__", _written().get(name, {})),
        ]
        if name == "alerts":
            parts += [
                f"### {name}.mail\n",
                _said(MailSettings, ""),
                _table(MailSettings, "LAKEHOUSE_ALERTS__MAIL__", {}),
            ]
    parts += ["## The embedded stack\n", _said(StackSettings, ""), _table(StackSettings, "LAKEHOUSE_STACK_", {})]
    return "\n".join(parts)


def sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """The groups of settings by name."""
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield name, field.annotation


def _written() -> Mapping[str, Any]:
    """What `lakehouse up` sets, with the structure of the settings."""
    nothing: Mapping[str, Any] = defaultdict(int)
    values = endpoints(Path(), Path(), Path(), nothing, nothing)
    values["dagster"]["first_day"] = None
    return {name: value for name, value in values.items() if name not in {"sources", "catalog_name", "warehouse"}}


def _said(model: type[BaseModel], name: str) -> str:
    return f"{inspect.cleandoc(model.__doc__ or '')} {MORE.get(name, '')}".strip() + "\n"


def _table(model: type[BaseModel], prefix: str, written: Mapping[str, Any]) -> str:
    groups = dict(sections()) if model is Settings else {}
    return markdown_table(
        ("variable", "default", "meaning"),
        (
            (code(f"{prefix}{name.upper()}"), _default(field, name in written), _meaning(field))
            for name, field in model.model_fields.items()
            if name not in groups and (model, name) != (Settings, "sources")
        ),
    )


def _meaning(field: FieldInfo) -> str:
    """Its description, behind the values that it takes where neither that nor the default says them all."""
    said, choices = field.description or "", [code(choice) for choice in _choices(field.annotation)]
    if all(choice in said or choice == code(str(field.default)) for choice in choices):
        return said
    return f"{' or '.join(filter(None, (', '.join(choices[:-1]), choices[-1])))}: {said}"


def _choices(annotation: Any) -> Iterator[str]:
    """The values of a field that takes these alone; none of another."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from _choices(part)


def _default(field: FieldInfo, set_by_up: bool) -> str:
    """As a person writes it; a dash where there is none."""
    if field.is_required():
        return "required"
    known = field.default is not None and field.default_factory is None
    own = _written_out(field.default) if known else code("{}") if field.default_factory is dict else ""
    return ", ".join(filter(None, (own, "set by `up`" if set_by_up else ""))) or "–"


def _written_out(value: object) -> str:
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, int | float):
        unit = next((unit for unit in UNITS if value >= unit[0] and value % unit[0] == 0), None)
        return f"{value // unit[0]} {unit[1]}" if unit else f"{value:g}"
    return code("[]" if value == () else str(value))
