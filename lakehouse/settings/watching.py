"""Who is told what, and where numbers and logs go."""

from typing import Literal

from pydantic import Field, SecretStr, model_validator

from lakehouse.settings.section import Port, Section, Url


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

    webhook: Url = Field(
        None, description="URL that takes alerts as JSON by POST, such as an incoming webhook of Slack"
    )
    mail: MailSettings | None = Field(
        None, description="who gets alerts by mail, as JSON, or `[alerts.mail]` in `lakehouse.toml`"
    )
    every_seconds: float = Field(15.0, gt=0, description="how often `lakehouse watch` looks")
    lag_seconds: float = Field(900.0, gt=0, description="limit of tables that declare no `lag`")
    load_seconds: float = Field(
        1800.0,
        gt=0,
        description="how long published rows may wait for a load, unless `freshness_minutes` says less, and how long a "
        "follower or worker is ready without progress",
    )
    slot_bytes: int = Field(
        10 * 1024**3, gt=0, description="WAL that a source may retain for tables that declare no `lag`"
    )
    disk_free_bytes: int = Field(5 * 1024**3, ge=0, description="space that must be free on the home's disk")
    backup_hours: float = Field(
        50.0, ge=0, description="age of the last backup, or of a lake that was never backed up; 0: nobody is told"
    )


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
