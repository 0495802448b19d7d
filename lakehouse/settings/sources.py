"""How each kind of source is reached."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import AfterValidator, Discriminator, Field, SecretStr, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError

from lakehouse.settings.section import Section, Url, is_blank
from lakehouse.text.names import NAME


def with_password(url: str | SecretStr, file: Path, setting: str) -> str:
    """The URL with the password of a file; ValueError where there is none to read, or nowhere to put it.

    A URL that holds that password already stays as it is.
    """
    text = url.get_secret_value() if isinstance(url, SecretStr) else str(url)
    try:
        password = quote(file.read_text().rstrip("\r\n"), safe="")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ValueError(f"{setting} {file}: {why}") from None
    scheme, mark, rest = text.partition("://")
    login, at, address = rest.partition("/")[0].rpartition("@")
    user, colon, there = login.partition(":")
    if not password or not mark or not user or (colon and there != password):
        raise ValueError(
            f"{setting} {file} holds the password, so the URL names the user and no password:"
            " postgresql://user@host/database" if password else f"{setting} {file} is empty"
        )  # fmt: skip
    return text if colon else f"{scheme}://{user}:{password}{at}{address}{rest.removeprefix(login + at + address)}"


class SourceSettings(Section):
    """How to reach one source database."""

    kind: Literal["postgres"] = Field(
        "postgres",
        description="what kind of source it is; `kafka` for [topics](../operations.md#topics-in-kafka)",
    )
    url: SecretStr = Field(description="libpq URL of the runtime role: REPLICATION and SELECT are enough")
    owner_url: Url = Field(
        None,
        description=(
            "libpq URL of the tables' owner, for `prepare` and the simulators; without it, set-up DDL is printed"
        ),
    )
    primary_url: Url = Field(
        None,
        description=(
            "libpq URL of the runtime role on the primary, where `url` leads to a [standby](../how-to/standby.md) that"
            " is read in its place (Postgres 16 and newer)"
        ),
    )
    password_file: Path | None = Field(
        None,
        description="file with the password of the runtime role, for `url` and `primary_url`, which then hold none",
    )
    owner_password_file: Path | None = Field(None, description="file with the password of the owner, for `owner_url`")
    slot: str | None = Field(None, description="replication slot; unset means `lakehouse_<source>`")
    publication: str = Field("lakehouse", description="publication that carries the declared tables")

    @model_validator(mode="before")
    @classmethod
    def _with_passwords(cls, values: Any) -> Any:
        """The passwords of files in the URLs, where every client looks for them."""
        if not isinstance(values, dict):
            return values
        files = {"url": "password_file", "primary_url": "password_file", "owner_url": "owner_password_file"}
        found = {
            url: with_password(values[url], Path(values[file]).expanduser(), file)
            for url, file in files.items()
            if values.get(url) and values.get(file) and isinstance(values[file], str | Path)
        }
        return values | found

    @field_validator("url", mode="before")
    @classmethod
    def _is_there(cls, given: object) -> object:
        if is_blank(given):
            raise ValueError("is set and empty: unset the variable, or take the key out of lakehouse.toml")
        return given


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
    url: Url = Field(
        None,
        description="libpq URL of the database behind the topics, of a role with SELECT: for `reconcile --views`, "
        "`erase`, `prepare --check`, and to tell a connector that has stopped",
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


WRONG_NAME = "wrong_name"


def _check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise PydanticCustomError(
            WRONG_NAME, "no source can be declared by this name: use a-z, 0-9 and _, beginning with a letter"
        )
    return name


SourceName = Annotated[str, AfterValidator(_check_name)]
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
