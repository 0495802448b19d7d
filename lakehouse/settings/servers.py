"""The servers that ingestion, dbt and readers use: object store, Trino, Spark, Dagster."""

from datetime import date
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, SecretStr, model_validator

from lakehouse.errors import LakehouseError
from lakehouse.settings.section import Port, Section, Url


class S3Settings(Section):
    """The object store that holds the warehouse."""

    endpoint: str | None = Field(None, description="URL of an S3-compatible server; unset means AWS")
    region: str = Field("us-east-1", description="region of the bucket")
    access_key: SecretStr | None = Field(None, description="unset means the AWS default chain")
    secret_key: SecretStr | None = Field(None, description="unset means the AWS default chain")
    path_style: bool = Field(True, description="bucket in the path instead of the host name")
    folder: Path | None = Field(
        None,
        description=(
            "where a store on this machine has its files, if it answers before they are on the disk: ingestion waits "
            "for that before the catalog names them"
        ),
    )
    ca: Path | None = Field(
        None, description="PEM file of the authorities to trust, for `https`; unset means those of the system"
    )

    @model_validator(mode="after")
    def _has_both_keys(self) -> "S3Settings":
        if bool(self.access_key) != bool(self.secret_key):  # variables may be set and empty
            raise ValueError("access_key and secret_key belong together")
        return self


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
    reader_user: str | None = Field(
        None,
        description=(
            "the login of `lakehouse sql`, of charts and questions at `/lake`, and of `lakehouse env --for`, which "
            "refuse without it"
        ),
    )
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

    @model_validator(mode="after")
    def _has_whole_logins(self) -> "TrinoSettings":
        for role, user, password in (
            ("reader", self.reader_user, self.reader_password), ("privacy", self.privacy_user, self.privacy_password)
        ):  # fmt: skip
            if password is not None and user is None:
                raise ValueError(f"{role}_password needs {role}_user")
        return self

    def login(self, role: Literal["writer", "reader", "privacy"]) -> Login:
        """User and password of a role; raises LakehouseError where a role other than the writer has none.

        The pipeline's login would do in its place whatever was meant to be forbidden.
        """
        logins = {
            "writer": (self.user, self.password),
            "reader": (self.reader_user, self.reader_password),
            "privacy": (self.privacy_user, self.privacy_password),
        }
        user, password = logins[role]
        if user is None:
            variable = f"LAKEHOUSE_TRINO__{role.upper()}_USER"
            raise LakehouseError(
                f"Trino: the role {role} has no login: set {variable} and …_PASSWORD (`lakehouse up` does, for "
                "commands in the project's folder), or ask as the pipeline with `lakehouse sql --role writer`"
            )
        return Login(user, password)


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


class DagsterSettings(Section):
    """Where the Dagster UI listens and where its instance keeps its state."""

    host: str = Field("127.0.0.1", description="where the UI listens")
    port: Port = Field(3000, description="port of the UI")
    storage_url: Url = Field(
        None,
        description=(
            "libpq URL of Dagster's database; `up`, `dev`, `run` and `worker` write it to "
            "`$LAKEHOUSE_HOME/dagster/dagster.yaml`, with its password in `pgpass` beside it"
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
    step_processes: bool = Field(
        False,
        description=(
            "each step of a run that the daemon launches is a process of its own, with a JVM if it needs Spark; else a"
            " run is one process"
        ),
    )
    first_day: date = Field(
        date(2026, 1, 1),
        description="first day that can be backfilled; `up` sets six days before the home's first start",
    )
