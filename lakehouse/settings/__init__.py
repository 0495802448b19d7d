"""Every setting of the system in one typed object.

Order of precedence: `LAKEHOUSE_*` environment, the files of `LAKEHOUSE_SECRETS_DIR`, `lakehouse.toml` in the project's
folder, `$LAKEHOUSE_HOME/endpoints.toml` (written by `lakehouse up`, so the embedded stack is one way among others
of filling these settings), the defaults of each group. Nested settings use two underscores: `LAKEHOUSE_TRINO__HOST`.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from lakehouse.errors import LakehouseError
from lakehouse.files.secret_files import SecretFiles, read_folder, refuse_open
from lakehouse.files.variables import mistaken
from lakehouse.settings import filling
from lakehouse.settings.ingestion import IngestionSettings
from lakehouse.settings.mistakes import wrong_settings
from lakehouse.settings.places import (
    CONFIG_FILE,
    DBT_PACKAGE,
    ENDPOINTS_FILE,
    HOME,
    PROJECT_DIR,
    absolute,
    check_project,
    config_file,
    is_project,
    project_dir,
)
from lakehouse.settings.section import Port, Section, Url, is_blank
from lakehouse.settings.servers import DagsterSettings, Login, S3Settings, SparkSettings, TrinoSettings
from lakehouse.settings.serving import ExportSettings, ServeSettings
from lakehouse.settings.sources import (
    BrokerSettings,
    Connection,
    DebeziumSettings,
    KafkaSettings,
    RegistrySettings,
    SourceName,
    SourceSettings,
)
from lakehouse.settings.watching import AlertSettings, LogSettings, MailSettings, MetricsSettings
from lakehouse.text.spelling import close

__all__ = [
    "CONFIG_FILE", "DBT_PACKAGE", "ENDPOINTS_FILE", "PROJECT_DIR", "TABLE", "AlertSettings", "BrokerSettings",
    "Connection", "DagsterSettings", "DebeziumSettings", "ExportSettings", "IngestionSettings", "KafkaSettings",
    "LogSettings", "Login", "MailSettings", "MetricsSettings", "Port", "RegistrySettings", "S3Settings", "Section",
    "ServeSettings", "Settings", "SourceSettings", "SparkSettings", "TrinoSettings", "check_project", "config_file",
    "connected_now", "is_project", "load_settings", "wrong_settings",
]  # fmt: skip
TABLE = "see docs/reference/settings.md"


class Settings(BaseSettings):
    """All settings; see the module's docstring for where they come from."""

    model_config = SettingsConfigDict(env_prefix="LAKEHOUSE_", env_nested_delimiter="__", extra="forbid", frozen=True)

    home: Path = Field(
        Path(HOME),
        description="data, logs, ports and secrets of this installation; two homes can run at the same time",
    )
    cache: Path = Field(Path("~/.cache/lakehouse"), description="downloads, shared by all homes", validate_default=True)
    secrets_dir: Path | None = Field(None, description="a folder with one file per setting, named like its variable")
    sources: dict[SourceName, Connection] = Field(
        default_factory=dict, description="what to ingest, each with the settings of a source"
    )
    catalog_url: Url = Field(None, description="libpq URL of the catalog and state database")
    catalog_name: str = Field("lake", description="name of the catalog in Iceberg's tables")
    warehouse: str = Field("s3://warehouse/", description="where the tables' files are")
    s3: S3Settings = S3Settings()
    trino: TrinoSettings = TrinoSettings()
    spark: SparkSettings = SparkSettings()
    ingestion: IngestionSettings = IngestionSettings()
    dagster: DagsterSettings = DagsterSettings()
    alerts: AlertSettings = AlertSettings()
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()
    serve: ServeSettings = ServeSettings()
    export: ExportSettings = ExportSettings()
    project_dir: Path = Field(
        default_factory=lambda: project_dir(),
        description=(
            "the folder that contains `dbt_project/` and `workspace.yaml`; unset means that of `lakehouse.toml` if it"
            " has a `dbt_project/`, else the working folder"
        ),
    )

    @field_validator("sources", mode="before")
    @classmethod
    def _without_blank_ones(cls, given: Any) -> Any:
        """Those of which nothing is set, such as one whose variable for the URL is empty."""
        if not isinstance(given, dict):
            return given
        return {
            name: source
            for name, source in given.items()
            if not (isinstance(source, dict) and source and all(map(is_blank, source.values())))
        }

    @field_validator("project_dir")
    @classmethod
    def _isabsolute(cls, value: Path) -> Path:
        return absolute(value)

    @field_validator("home", "cache")
    @classmethod
    def _is_one_path(cls, value: Path) -> Path:
        if "," in str(value):
            raise ValueError(f"{value} has a comma, where Spark and Trino begin another path: choose another folder")
        return value

    @property
    def artifacts(self) -> Path:
        """Jars, servers and Java runtimes, shared by all homes."""
        return self.cache / "artifacts"

    @property
    def dbt_project_dir(self) -> Path:
        """The dbt project that holds the declarations."""
        return self.project_dir / "dbt_project"

    @property
    def dagster_home(self) -> Path:
        """What Dagster knows as DAGSTER_HOME."""
        return self.home / "dagster"

    def connection(self, name: str) -> SourceSettings | KafkaSettings | DebeziumSettings:
        """The settings of one source, of whatever kind; raises LakehouseError when there are none."""
        if (source := self.sources.get(name)) is None:
            meant = close(name, self.sources, 0.6)
            raise LakehouseError(
                f"source {name!r} has no connection: "
                + (f"did you mean {meant!r}? Else " if meant else "")
                + f"set {_of_source(name)}URL or [sources.{name}] url in {config_file()}, "
                "or run `lakehouse up` for the embedded stack"
            )
        return source

    def source(self, name: str) -> SourceSettings:
        """The settings of a source in Postgres; raises LakehouseError for another, or a URL that is no libpq URL."""
        from lakehouse.text.urls import parse_url

        source = self.connection(name)
        if not isinstance(source, SourceSettings):
            raise LakehouseError(f"source {name!r} is of kind {source.kind}; this is for sources in Postgres alone")
        parse_url(source.url.get_secret_value(), f"{_of_source(name)}URL")
        for key, url in (("OWNER_URL", source.owner_url), ("PRIMARY_URL", source.primary_url)):
            if url is not None:
                parse_url(url.get_secret_value(), f"{_of_source(name)}{key}")
        return source

    def behind(self, name: str) -> "Settings":
        """Settings in which a source is the database that its rows come from; raises LakehouseError where that is not
        known."""
        source = self.connection(name)
        if isinstance(source, DebeziumSettings):
            if source.url is None:
                raise LakehouseError(
                    f"source {name!r}: this asks the database behind the topics: set {_of_source(name)}URL, of a role "
                    "with SELECT"
                )
            source = SourceSettings(url=source.url)
        found = self.model_copy(update={"sources": self.sources | {name: source}})
        found.source(name)
        return found

    def debezium(self, name: str) -> DebeziumSettings:
        """The settings of a source in topics of Debezium; raises LakehouseError for another."""
        source = self.connection(name)
        if not isinstance(source, DebeziumSettings):
            raise LakehouseError(f"source {name!r} is of kind {source.kind}: set {_of_source(name)}KIND=debezium")
        return source

    def kafka(self, name: str) -> BrokerSettings:
        """The settings of a source in Kafka; raises LakehouseError for another."""
        source = self.connection(name)
        if not isinstance(source, BrokerSettings):
            raise LakehouseError(f"source {name!r} is of kind {source.kind}: set {_of_source(name)}KIND=kafka")
        return source

    @property
    def databases(self) -> dict[str, SourceSettings]:
        """The sources in Postgres."""
        return {name: source for name, source in self.sources.items() if isinstance(source, SourceSettings)}

    def catalog_dsn(self) -> str:
        """libpq URL of the catalog database; raises LakehouseError when it is not set or no such URL."""
        from lakehouse.text.urls import parse_url

        if self.catalog_url is None and is_blank(os.environ.get("LAKEHOUSE_CATALOG_URL")):
            raise LakehouseError("LAKEHOUSE_CATALOG_URL is set and empty: unset the variable")
        if self.catalog_url is None:
            raise LakehouseError("the catalog database is not set: run `lakehouse up`, or set LAKEHOUSE_CATALOG_URL")
        parse_url(self.catalog_url.get_secret_value(), "LAKEHOUSE_CATALOG_URL")
        return self.catalog_url.get_secret_value()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment over secret files over lakehouse.toml over the home's endpoints."""
        file = config_file()
        written_by_hand = filling.read_toml(file)
        refuse_open(file, settings_cls, written_by_hand)
        toml = InitSettingsSource(settings_cls, filling.placed(written_by_hand, settings_cls, file.parent))
        folder = filling.first("secrets_dir", (env_settings, toml))
        files = SecretFiles(settings_cls, absolute(folder) if folder else None)
        home = filling.home(toml, init_settings, env_settings)
        written = filling.endpoints(settings_cls, home / ENDPOINTS_FILE)
        given = [source() for source in (init_settings, env_settings, files, toml)]
        if filling.is_another(written.get("trino", {}), filling.sections("trino", given)):
            written.pop("trino", None)  # the logins of the embedded Trino are no business of that one
        if "s3" in written and filling.is_another_store(written, given):
            del written["s3"]  # nor are the keys of its object store, which no setting could unset
        if "sources" in written:  # nor is the owner of a sample that of a source by its name
            written["sources"] = filling.without_namesakes(written["sources"], given)
        endpoints = InitSettingsSource(settings_cls, written)
        paths = InitSettingsSource(settings_cls, {"home": home, "cache": filling.cache(env_settings, toml)})
        return paths, init_settings, env_settings, files, toml, endpoints


def _of_source(name: str) -> str:
    """What the variables of a source begin with."""
    return f"LAKEHOUSE_SOURCES__{name.upper()}__"


def load_settings(**overrides: Any) -> Settings:
    """Reads all settings; `overrides` win over every file and variable.

    Raises LakehouseError naming each wrong setting.
    """
    folder = os.environ.get("LAKEHOUSE_SECRETS_DIR")
    given = {*os.environ, *(read_folder(absolute(folder)) if folder else ())}
    if mistake := mistaken(given, Settings.model_fields, "LAKEHOUSE_STACK_"):
        raise LakehouseError(f"settings: {mistake}; {TABLE}")
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise LakehouseError(f"settings: {wrong_settings(error, Settings, 'LAKEHOUSE_')}; {TABLE}") from None
    except SettingsError as error:  # a variable that holds several values is not JSON; its text may hold a secret
        field = re.search(r'field "(\w+)"', str(error))
        name = f"LAKEHOUSE_{field[1].upper() if field else ''}"
        raise LakehouseError(f"settings: {name}, or a variable that begins so, is not JSON; {TABLE}") from None


def connected_now(settings: Settings) -> Settings:
    """The same with the sources that are connected by now; as it is while the files of settings are wrong."""
    with suppress(LakehouseError):
        return settings.model_copy(update={"sources": load_settings().sources})
    return settings
