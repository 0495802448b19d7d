"""libpq URLs, taken apart for the clients that want another form."""

from dataclasses import dataclass
from urllib.parse import quote, urlencode

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from lakehouse.errors import LakehouseError

NAMING = ("host", "hostaddr", "dbname", "service")  # the parameters of libpq that say which database it is


@dataclass(frozen=True)
class PostgresUrl:
    """A Postgres address; `options` are the further libpq parameters (sslmode, sslrootcert, ...)."""

    host: str
    port: int
    database: str
    user: str
    password: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def place(self) -> tuple[str, int, str]:
        """Host, port and database, the same for both names of this machine."""
        return "127.0.0.1" if self.host == "localhost" else self.host, self.port, self.database

    def jdbc(self) -> str:
        """JDBC URL without user and password; libpq's ssl parameters have the same names there."""
        query = urlencode(self.options)
        return f"jdbc:postgresql://{self.host}:{self.port}/{quote(self.database)}" + (f"?{query}" if query else "")

    def sqlalchemy(self) -> str:
        """URL for SQLAlchemy with psycopg 3."""
        query = urlencode(self.options)
        login = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        return f"postgresql+psycopg://{login}@{self.host}:{self.port}/{quote(self.database)}" + (
            f"?{query}" if query else ""
        )


def secret_options() -> frozenset[str]:
    """The names of the libpq parameters whose values nobody may see: `password`, `sslpassword` and others."""
    return frozenset(each.keyword.decode() for each in Conninfo.get_defaults() if each.dispchar == b"*")


def parse_url(url: str, setting: str = "a Postgres address") -> PostgresUrl:
    """Reads a libpq URL or keyword string; raises LakehouseError, naming the setting, when it is neither.

    One that names nothing is an error, too: libpq would take it for a database of this machine.
    libpq's own message is not passed on: it quotes what it could not read, which may be a piece of the password.
    """
    try:
        parts = {key: str(value) for key, value in conninfo_to_dict(url).items() if value is not None}
        port = int(parts.pop("port", "5432"))
    except (ProgrammingError, ValueError):
        raise LakehouseError(
            f"{setting} is not a libpq URL (postgresql://user:password@host:port/database): correct it, and "
            "percent-encode characters such as / @ : # in the password"
        ) from None
    if not any(parts.get(key) for key in NAMING):
        raise LakehouseError(
            f"{setting} names neither host nor database: write postgresql://user:password@host:port/database"
        )
    return PostgresUrl(
        host=parts.pop("host", "127.0.0.1"),
        port=port,
        database=parts.pop("dbname", "postgres"),
        user=parts.pop("user", ""),
        password=parts.pop("password", ""),
        options=tuple(sorted(parts.items())),
    )
