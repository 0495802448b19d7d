"""Every setting of the system in one typed object.

Order of precedence: `LAKEHOUSE_*` environment, the files of `LAKEHOUSE_SECRETS_DIR`, `lakehouse.toml` in the working
directory, `$LAKEHOUSE_HOME/endpoints.toml` (written by `lakehouse up`, so the embedded stack is one way among others
of filling these settings), the defaults below. Nested settings use two underscores: `LAKEHOUSE_TRINO__HOST`.
"""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SecretStr,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from lakehouse.errors import LakehouseError
from lakehouse.files.secret_files import SecretFiles, read_folder, refuse_open
from lakehouse.files.variables import mistaken
from lakehouse.text.spelling import Keys, close, keys_at, line_in_toml, unknown, without_kinds

PROJECT_DIR = Path(__file__).resolve().parent.parent  # the checkout; site-packages where a wheel is installed
DBT_PACKAGE = PROJECT_DIR / "lakehouse_project" / "cdc_vault"
CONFIG_FILE = "lakehouse.toml"
ENDPOINTS_FILE = "endpoints.toml"
Port = Annotated[int, Field(ge=1, le=65535)]


TABLE = "see docs/reference/settings.md"
NUMERIC = ("int_", "float_", "greater_", "less_", "finite_")  # what pydantic finds wrong with a number


class Section(BaseModel):
    """A group of settings; unknown names are errors, so that a typing mistake does not go unseen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SourceSettings(Section):
    """How to reach one source database."""

    kind: Literal["postgres"] = Field(
        "postgres",
        description="what kind of source it is; `kafka` for [topics](../operations.md#topics-in-kafka)",
    )
    url: SecretStr = Field(description="libpq URL of the runtime role: REPLICATION and SELECT are enough")
    owner_url: SecretStr | None = Field(
        None,
        description=(
            "libpq URL of the tables' owner, for `prepare` and the simulators; without it, set-up DDL is printed"
        ),
    )
    slot: str | None = Field(None, description="replication slot; unset means `lakehouse_<source>`")
    publication: str = Field("lakehouse", description="publication that carries the declared tables")


class RegistrySettings(Section):
    """The schema registry that the Avro events of a source are read by: Confluent's HTTP API."""

    url: str = Field(description="such as `https://registry:8081`")
    user: str | None = Field(None, description="the login; unset means none")
    password: SecretStr | None = Field(None, description="its password; needs `https`")
    ca: Path | None = Field(None, description="PEM file of the authorities to trust; unset means those of the system")

    @model_validator(mode="after")
    def _can_be_asked(self) -> "RegistrySettings":
        if not re.fullmatch(r"https?://[^\s@?#]+", self.url):
            raise ValueError("url begins with http:// or https:// and holds no login: that is in user and password")
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password belong together")
        if not self.url.startswith("https://") and (self.password is not None or self.ca is not None):
            raise ValueError("password and ca need a url with https")
        return self


class BrokerSettings(Section):
    """How to reach the Kafka cluster of one source."""

    bootstrap_servers: str = Field(min_length=1, description="host:port of some brokers, separated by commas")
    tls: bool = Field(False, description="brokers are reached by TLS")
    ca: Path | None = Field(None, description="PEM file of the authorities to trust; unset means those of the system")
    sasl: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(None, description="how to log in")
    user: str | None = Field(None, description="the login")
    password: SecretStr | None = Field(None, description="its password")
    schema_registry: RegistrySettings | None = Field(
        None, description="where the schemas of tables with `raw.format: avro` are"
    )

    @model_validator(mode="after")
    def _has_a_whole_login(self) -> "BrokerSettings":
        if len({self.sasl is None, self.user is None, self.password is None}) > 1:
            raise ValueError("sasl, user and password belong together")
        if self.sasl == "PLAIN" and not self.tls:
            raise ValueError("sasl = PLAIN sends the password as it is: set tls = true")
        if self.ca is not None and not self.tls:
            raise ValueError("ca needs tls = true")
        return self


class KafkaSettings(BrokerSettings):
    """A source of topics of events."""

    kind: Literal["kafka"] = Field(description="what kind of source it is")


class DebeziumSettings(BrokerSettings):
    """A source of topics that Debezium's connector for Postgres writes, and how it is set up."""

    kind: Literal["debezium"] = Field(description="what kind of source it is")
    transactions: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="the topic of `provide.transaction.metadata`, where transactions end: `<prefix>.transaction`; "
        "without it a cut is a state of each table alone",
    )
    url: SecretStr | None = Field(
        None,
        description="libpq URL of the database behind the topics, of a role with SELECT: for `reconcile --views`, "
        "`erase`",
    )
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        "at_least_once",
        description="`exactly_once` where Kafka Connect has `exactly.once.source.support` and Debezium is 3.7 or newer",
    )
    unavailable_value: str = Field(
        "__debezium_unavailable_value",
        min_length=1,
        description="the connector's `unavailable.value.placeholder`: a value that an update did not carry",
    )
    decimals: Literal["precise", "string"] | None = Field(
        None, description="its `decimal.handling.mode`; has to be set where messages have no schema"
    )
    times: Literal["adaptive", "adaptive_time_microseconds", "isostring"] | None = Field(
        None, description="its `time.precision.mode`; has to be set where messages have no schema"
    )
    binary: Literal["bytes", "base64", "hex"] | None = Field(
        None,
        description="its `binary.handling.mode`; has to be set where messages have no schema, or bytes come as text",
    )

    @field_validator("unavailable_value")
    @classmethod
    def _is_a_placeholder(cls, value: str) -> str:
        if value.startswith("hex:") and not re.fullmatch(r"([0-9A-Fa-f]{2})+", value[4:]):
            raise ValueError("what follows hex: is in hexadecimal digits")
        return value


UNKNOWN_KIND = "unknown_kind"


def _kind(given: Any) -> str | None:
    """By which model the settings of a source are read; None for a kind that there is not."""
    kind = given.get("kind", "postgres") if isinstance(given, dict) else getattr(given, "kind", None)
    models = {"postgres": "SourceSettings", "kafka": "KafkaSettings", "debezium": "DebeziumSettings"}
    return models.get(str(kind))


Connection = Annotated[
    Annotated[SourceSettings, Tag("SourceSettings")]
    | Annotated[KafkaSettings, Tag("KafkaSettings")]
    | Annotated[DebeziumSettings, Tag("DebeziumSettings")],
    Discriminator(
        _kind, custom_error_type=UNKNOWN_KIND, custom_error_message="Input should be 'postgres', 'kafka' or 'debezium'"
    ),
]


class S3Settings(Section):
    """The object store that holds the warehouse."""

    endpoint: str | None = Field(None, description="URL of an S3-compatible server; unset means AWS")
    region: str = Field("us-east-1", description="region of the bucket")
    access_key: SecretStr | None = Field(None, description="unset means the AWS default chain")
    secret_key: SecretStr | None = Field(None, description="unset means the AWS default chain")
    path_style: bool = Field(True, description="bucket in the path instead of the host name")
    ca: Path | None = Field(
        None, description="PEM file of the authorities to trust, for `https`; unset means those of the system"
    )


class Login(NamedTuple):
    """User and password of a role."""

    user: str
    password: SecretStr | None


class TrinoSettings(Section):
    """The Trino coordinator that dbt and readers talk to. `user` is the pipeline's, which writes."""

    host: str = Field(
        "127.0.0.1",
        description=(
            "host of the coordinator; if it is not the embedded Trino, nothing that `up` has set for Trino applies"
        ),
    )
    port: Port = Field(8080, description="port of the coordinator")
    user: str = Field("lakehouse", description="the pipeline's login, which writes")
    password: SecretStr | None = Field(None, description="needs `https`")
    catalog: str = Field("lake", description="name of the Iceberg catalog in Trino")
    http_scheme: Literal["http", "https"] = Field("http", description="`http` or `https`")
    ca: Path | None = Field(
        None,
        description="PEM file of the authority that signed Trino's certificate; unset means those that Python trusts",
    )
    reader_user: str | None = Field(None, description="the login of `lakehouse sql`; unset means the pipeline's")
    reader_password: SecretStr | None = Field(None, description="its password")
    privacy_user: str | None = Field(
        None, description="the login of `lakehouse sql --role privacy`, which reads personal data as well"
    )
    privacy_password: SecretStr | None = Field(None, description="its password")
    access: Path | None = Field(
        None, description="folder from which Trino reads its logins and rules; unset means that we do not manage them"
    )

    @model_validator(mode="after")
    def _sends_no_password_in_the_clear(self) -> "TrinoSettings":
        passwords = (self.password, self.reader_password, self.privacy_password)
        if self.http_scheme != "https" and any(password is not None for password in passwords):
            raise ValueError("a password needs http_scheme = https")
        return self

    def login(self, role: Literal["writer", "reader", "privacy"]) -> Login:
        """User and password of a role; a Trino that is told no others has one login for all."""
        if role == "reader" and self.reader_user is not None:
            return Login(self.reader_user, self.reader_password)
        if role == "privacy" and self.privacy_user is not None:
            return Login(self.privacy_user, self.privacy_password)
        return Login(self.user, self.password)


class SparkSettings(Section):
    """The Spark session: local by default, `spark://host:7077` or `k8s://...` beyond one machine."""

    master: str = Field("local[2]", description="or `spark://host:7077`, `k8s://…`")
    driver_memory: str = Field("2g", pattern=r"^[1-9][0-9]*[kmgtKMGT]$", description="such as `2g` or `1500m`")
    secret: SecretStr | None = Field(
        None,
        min_length=32,
        description="the secret of a standalone cluster, as its master and workers have it; 32 characters or more",
    )
    java_home: Path | None = Field(None, description="a Java 17 or 21; found by itself when unset")
    conf: dict[str, str] = Field(default_factory=dict, description="further Spark properties, as JSON")


class IngestionSettings(Section):
    """How changes are brought into the raw layer."""

    flush_bytes: int = Field(
        64 * 1024 * 1024,
        gt=0,
        description=(
            "the follower publishes after this much WAL; a larger backlog is peeked instead, so this also bounds its "
            "memory"
        ),
    )
    flush_interval_seconds: float = Field(
        1.0,
        gt=0,
        description=(
            "otherwise it publishes this long after the last publish began, or after twice the shorter duration of "
            "the last two; an isolated change is published at once"
        ),
    )
    poll_seconds: float = Field(
        0.5, gt=0, description="how often the follower checks whether a table was paused or the WAL has grown"
    )
    cycle_max_bytes: int = Field(1024 * 1024 * 1024, gt=0, description="maximum WAL that one cycle reads")
    decoding_memory_bytes: int = Field(
        256 * 1024 * 1024,
        ge=64 * 1024,
        description=(
            "memory of the source for open transactions; beyond it, the source sends them unfinished to a peek, and "
            "spills them for the follower's stream"
        ),
    )
    batch_bytes: int = Field(
        16 * 1024 * 1024, gt=0, description="bytes received and decoded at a time, of a backlog or a snapshot"
    )
    file_bytes: int = Field(
        256 * 1024 * 1024,
        gt=0,
        description="Arrow bytes after which a new data file begins; rows are written as they arrive",
    )
    max_snapshots: int = Field(
        500,
        ge=10,
        description=(
            "if a table that is appended to has more snapshots, the older half is removed from its metadata, whatever"
            " the retention"
        ),
    )
    snapshot_chunk_bytes: int = Field(128 * 1024 * 1024, gt=0, description="heap bytes per snapshot chunk")
    lease_seconds: float = Field(
        30.0, gt=1, description="a writer that shows no activity for this long loses its lease"
    )
    wait_seconds: float = Field(
        300.0,
        gt=0,
        description=(
            "how long a load waits for a follower to reach a position, or for others' transactions in the source, and"
            " an erasure for queries to end"
        ),
    )


class DagsterSettings(Section):
    """Where the Dagster UI listens and where its instance keeps its state."""

    host: str = Field("127.0.0.1", description="where the UI listens")
    port: Port = Field(3000, description="port of the UI")
    storage_url: SecretStr | None = Field(
        None,
        description=(
            "libpq URL of Dagster's database; `up`, `dev` and `run` write `$LAKEHOUSE_HOME/dagster/dagster.yaml` for "
            "it, with its password in `pgpass` beside it"
        ),
    )
    ui_secret: SecretStr | None = Field(
        None, min_length=32, description="logs in to the UI, 32 characters or more; generated in the home when unset"
    )
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description=(
            "further names, as JSON, by which browsers may call the UI, in addition to this machine's and `host`"
        ),
    )
    first_day: date = Field(
        date(2026, 1, 1),
        description="first day that can be backfilled; `up` sets six days before the home's first start",
    )


class MailSettings(Section):
    """The mail server that sends alerts."""

    host: str = Field(description="the mail server")
    port: Port = Field(587, description="587 for `starttls`; 465 is usual for `tls`")
    tls: Literal["starttls", "tls", "none"] = Field("starttls", description="`starttls`, `tls` or `none`")
    user: str | None = Field(None, description="its login; unset means none")
    password: SecretStr | None = Field(None, description="needs `starttls` or `tls`")
    sender: str = Field(description="the From address")
    to: tuple[str, ...] = Field(min_length=1, description="who is told, as JSON")

    @model_validator(mode="after")
    def _sends_no_password_in_the_clear(self) -> "MailSettings":
        if self.password is not None and self.tls == "none":
            raise ValueError("a password needs tls = starttls or tls")
        return self


class AlertSettings(Section):
    """Who is told what needs attention, and the limits of what declares none of its own."""

    webhook: SecretStr | None = Field(
        None, description="URL that takes alerts as JSON by POST, such as an incoming webhook of Slack"
    )
    mail: MailSettings | None = Field(
        None, description="who gets alerts by mail, as JSON, or `[alerts.mail]` in `lakehouse.toml`"
    )
    every_seconds: float = Field(15.0, gt=0, description="how often `lakehouse watch` looks")
    lag_seconds: float = Field(900.0, gt=0, description="limit of tables that declare no `lag`")
    load_seconds: float = Field(
        1800.0, gt=0, description="how long published rows may wait for a load, unless `freshness_minutes` says less"
    )
    slot_bytes: int = Field(
        10 * 1024**3, gt=0, description="WAL that a source may retain for tables that declare no `lag`"
    )
    disk_free_bytes: int = Field(5 * 1024**3, ge=0, description="space that must be free on the home's disk")
    backup_hours: float = Field(50.0, gt=0, description="age of the last backup, once one was made")


class MetricsSettings(Section):
    """Where Prometheus reads. No port, no metrics."""

    host: str = Field("127.0.0.1", description="where Prometheus reads")
    follower_port: Port | None = Field(
        None, description="of `lakehouse ingest --follow`; without it there are no metrics"
    )
    watch_port: Port | None = Field(None, description="of `lakehouse watch`")
    worker_port: Port | None = Field(None, description="of `lakehouse worker`")


class LogSettings(Section):
    """What long-running processes log."""

    format: Literal["text", "json"] = Field("text", description="`text` or `json`")
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="`debug`, `info`, `warning` or `error`"
    )


class ServeSettings(Section):
    """Where `lakehouse serve` listens: the Iceberg REST catalog, and the files of its tables."""

    host: str = Field("127.0.0.1", description="where it listens")
    port: Port = Field(8181, description="its port")
    url: str | None = Field(None, description="the URL by which clients reach it; unset means host and port")
    certificate: Path | None = Field(None, description="PEM file; with it and `key` the service speaks TLS")
    key: Path | None = Field(None, description="PEM file of the certificate's key")
    behind_proxy: bool = Field(False, description="a proxy ends TLS and names the clients")
    secret: SecretStr | None = Field(
        None, min_length=32, description="signs tokens, 32 characters or more; generated in the home when unset"
    )
    requests_per_second: float = Field(100.0, gt=0, description="of one login, in the long run")
    user: str | None = Field(
        None, description="as root: the user that it becomes once it has read its secret and its key"
    )
    access_log: Path | None = Field(
        None, description="who has read what; unset means `logs/serve-access.log` in the home"
    )

    @model_validator(mode="after")
    def _has_both_files(self) -> "ServeSettings":
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together")
        return self

    def address(self) -> str:
        """The URL by which clients reach it."""
        host = "127.0.0.1" if self.host in {"0.0.0.0", "::"} else self.host
        own = f"{'https' if self.certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{self.port}"
        return (self.url or own).rstrip("/")


class ExportSettings(Section):
    """Another JDBC catalog that names the lake's tables, for engines that read no REST catalog."""

    url: SecretStr | None = Field(None, description="libpq URL of its database")
    catalog: str = Field("lake", description="what it is called there")
    tables: tuple[str, ...] = Field(("mirror_*.*", "marts.*"), description="which tables, with * for any text")
    role: Literal["reader", "privacy", "writer"] = Field(
        "reader", description="only what this role may read as a whole"
    )
    every_seconds: float = Field(60.0, gt=0, description="how often `lakehouse export --follow` brings it up to date")


class Settings(BaseSettings):
    """All settings; see the module's docstring for where they come from."""

    model_config = SettingsConfigDict(env_prefix="LAKEHOUSE_", env_nested_delimiter="__", extra="forbid", frozen=True)

    home: Path = Field(
        Path(".lakehouse"),
        description="data, logs, ports and secrets of this installation; two homes can run at the same time",
    )
    cache: Path = Field(Path("~/.cache/lakehouse"), description="downloads, shared by all homes", validate_default=True)
    secrets_dir: Path | None = Field(None, description="a folder with one file per setting, named like its variable")
    sources: dict[str, Connection] = Field(
        default_factory=dict, description="what to ingest, each with the settings of a source"
    )
    catalog_url: SecretStr | None = Field(None, description="libpq URL of the catalog and state database")
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
        default_factory=lambda: _project_dir(),
        description=(
            "the folder that contains `dbt_project/` and `workspace.yaml`; unset means that of `lakehouse.toml` if it"
            " has a `dbt_project/`, else the checkout"
        ),
    )

    @field_validator("project_dir")
    @classmethod
    def _is_absolute(cls, value: Path) -> Path:
        return _absolute(value)

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
                + f"set {_of_source(name)}URL or [sources.{name}] url in {CONFIG_FILE}, "
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
        if source.owner_url is not None:
            parse_url(source.owner_url.get_secret_value(), f"{_of_source(name)}OWNER_URL")
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
        toml = TomlConfigSettingsSource(settings_cls, config_file())
        refuse_open(config_file(), settings_cls, toml())
        folder = _first("secrets_dir", (env_settings, toml))
        files = SecretFiles(settings_cls, _absolute(folder) if folder else None)
        home = _home(init_settings, env_settings, toml)
        written = _endpoints(settings_cls, home / ENDPOINTS_FILE)
        own = [source().get("trino") or {} for source in (init_settings, env_settings, files, toml)]
        if _is_another(written.get("trino", {}), own):
            written.pop("trino", None)  # the logins of the embedded Trino are no business of that one
        endpoints = InitSettingsSource(settings_cls, written)
        paths = InitSettingsSource(settings_cls, {"home": home, "cache": _cache(env_settings, toml)})
        return paths, init_settings, env_settings, files, toml, endpoints


def _of_source(name: str) -> str:
    """What the variables of a source begin with."""
    return f"LAKEHOUSE_SOURCES__{name.upper()}__"


def config_file() -> Path:
    """Where lakehouse.toml is, or would be; absolute. Raises LakehouseError when LAKEHOUSE_CONFIG names no file."""
    given = os.environ.get("LAKEHOUSE_CONFIG")
    path = _absolute(given or CONFIG_FILE)
    if given and not path.exists():
        raise LakehouseError(f"settings: LAKEHOUSE_CONFIG names {path}, which is no file: correct or unset it")
    return path


def _project_dir() -> Path:
    """The folder of lakehouse.toml if it is a project's; else the checkout, which is one, too."""
    here = config_file().parent
    found = (folder for folder in (here, PROJECT_DIR) if (folder / "dbt_project" / "dbt_project.yml").exists())
    return next(found, here)


def _is_another(embedded: Mapping[str, Any], given: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the settings lead to another Trino than the embedded one; the first that has a value wins."""
    told = {name: next((str(part[name]) for part in given if name in part), None) for name in ("host", "port")}
    if told["host"] == "localhost":
        told["host"] = "127.0.0.1"
    return any(value not in (None, str(embedded.get(name))) for name, value in told.items())


def _endpoints(model: type[BaseModel], file: Path) -> dict[str, Any]:
    """What `lakehouse up` wrote, of this release or another one: what this one has no setting for is passed over."""

    def known(values: dict[str, Any], path: Keys) -> dict[str, Any]:
        names = keys_at(model, path)
        return {
            name: known(value, (*path, name)) if isinstance(value, dict) else value
            for name, value in values.items()
            if name in names or not names
        }

    return known(tomllib.loads(file.read_text()), ()) if file.is_file() else {}


def _home(*sources: PydanticBaseSettingsSource) -> Path:
    return _absolute(_first("home", sources) or ".lakehouse")


def _cache(*sources: PydanticBaseSettingsSource) -> Path:
    return _absolute(_first("cache", sources) or "~/.cache/lakehouse")


def _first(key: str, sources: tuple[PydanticBaseSettingsSource, ...]) -> Any:
    return next((values[key] for values in (source() for source in sources) if values.get(key)), None)


def _absolute(path: str | Path) -> Path:
    return Path(path).expanduser().resolve()


def load_settings(**overrides: Any) -> Settings:
    """Reads all settings; `overrides` win over every file and variable.

    Raises LakehouseError naming each wrong setting.
    """
    folder = os.environ.get("LAKEHOUSE_SECRETS_DIR")
    given = {*os.environ, *(read_folder(_absolute(folder)) if folder else ())}
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
    except tomllib.TOMLDecodeError as error:
        raise LakehouseError(f"settings: {CONFIG_FILE} or {ENDPOINTS_FILE} is not TOML: {error}") from None


def wrong_settings(error: ValidationError, model: type[BaseModel], prefix: str) -> str:
    """Each wrong setting by the name of its variable, or by its line in lakehouse.toml, and what is wrong.

    Only numbers are repeated: what was given for text may be a secret.
    """
    found = []
    for problem in error.errors():
        path = without_kinds(model, problem["loc"]) + (("kind",) if problem["type"] == UNKNOWN_KIND else ())
        if problem["type"] == "extra_forbidden":
            found.append(f"{_place(path, prefix)}{_unknown(path, model, prefix)}")
        else:
            given = _given(problem["type"], problem["input"])
            found.append(f"{_place(path, prefix)}{_variable(path, prefix)}{given}: {problem['msg']}")
    return "; ".join(found)


def _variable(path: Keys, prefix: str) -> str:
    return f"{prefix}{'__'.join(str(part).upper() for part in path)}"


def _unknown(path: Keys, model: type[BaseModel], prefix: str) -> str:
    """A key that no setting has, spelled as it was given: in the environment, or in the file."""
    *outer, key = map(str, path)
    known = keys_at(model, path[:-1])
    if not _is_in_environment(path, prefix):
        return unknown(key, known)
    meant = close(key, known, 0.6)
    instead = f": did you mean {_variable((*outer, meant), prefix)}?" if meant else ""
    return f"{_variable(path, prefix)} is no setting{instead}"


def _place(path: Keys, prefix: str) -> str:
    file = config_file()
    if _is_in_environment(path, prefix) or not file.is_file():
        return ""
    line = line_in_toml(file.read_text(), path)
    return f"{file}:{line}: " if line else ""


def _is_in_environment(path: Keys, prefix: str) -> bool:
    """Whether a variable sets this, or a section around it as JSON."""
    given = {name.upper() for name in os.environ}
    return any(_variable(path[:depth], prefix) in given for depth in range(1, len(path) + 1))


def _given(kind: str, value: Any) -> str:
    return f" is {value!r}" if kind.startswith(NUMERIC) else ""
