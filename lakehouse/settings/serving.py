"""What serves the lake to other engines."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, model_validator

from lakehouse.settings.section import Port, Section, Url


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

    url: Url = Field(None, description="libpq URL of its database")
    catalog: str = Field("lake", description="what it is called there")
    tables: tuple[str, ...] = Field(("mirror_*.*", "marts.*"), description="which tables, with * for any text")
    role: Literal["reader", "privacy", "writer"] = Field(
        "reader", description="only what this role may read as a whole"
    )
    every_seconds: float = Field(60.0, gt=0, description="how often `lakehouse export --follow` brings it up to date")
