"""The catalog service (`lakehouse_serve`), by the names and passwords of Trino."""

import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from lakehouse.servers.outage import BROKEN_OFF
from lakehouse.settings import ServeSettings, config_file
from lakehouse_stack.home.ports import LOOPBACK
from lakehouse_stack.processes.accounts import ServerPlacement
from lakehouse_stack.processes.ownership import own_dir
from lakehouse_stack.processes.process import RELEASE, Launch
from lakehouse_stack.servers.server import Server

PROGRAM = Path(sys.executable).name


def serve_server(
    home: Path,
    placement: ServerPlacement,
    port: int,
    access: Path,
    options: ServeSettings,
    endpoints: Mapping[str, str],
) -> Server:
    """The service, on loopback; `endpoints` are the settings of catalog and store, as environment variables.

    It starts as root to read its secret and the user's certificate, and then becomes the account by itself.
    """
    folder, config, account = placement.data / "serve", config_file(), placement.account
    own = {
        **_environment(options),
        "LAKEHOUSE_HOME": str(home),
        "LAKEHOUSE_SERVE__HOST": LOOPBACK,
        "LAKEHOUSE_SERVE__PORT": str(port),
        "LAKEHOUSE_TRINO__ACCESS": str(access),
        **({"LAKEHOUSE_CONFIG": str(config)} if config.exists() else {}),
        **({"HOME": str(folder), "LAKEHOUSE_SERVE__USER": account.name} if account else {}),
        **({"LAKEHOUSE_SERVE__ACCESS_LOG": str(folder / "serve-access.log")} if account else {}),
    }
    return Server(
        name="serve",
        port=port,
        launch=Launch(
            argv=(sys.executable, "-m", "lakehouse_serve"),
            cwd=folder,
            log=home / "logs" / "serve.log",
            env={**own, **endpoints},
            config=RELEASE + (config.read_text() if config.is_file() else ""),
        ),
        check_health=lambda: check_health(port, options.certificate is not None),
        prepare=lambda: own_dir(folder, account),
        after_start=lambda: None,
        working_dir=folder,
        program=PROGRAM,
    )


def _environment(options: ServeSettings) -> dict[str, str]:
    """What the user has set, as variables: a server inherits none of those of its starter."""
    values = {
        "CERTIFICATE": options.certificate and options.certificate.resolve(),
        "KEY": options.key and options.key.resolve(),
        "URL": options.url,
        "BEHIND_PROXY": options.behind_proxy,
        "SECRET": options.secret and options.secret.get_secret_value(),
        "REQUESTS_PER_SECOND": options.requests_per_second,
    }
    return {f"LAKEHOUSE_SERVE__{name}": str(value) for name, value in values.items() if value is not None}


def check_health(port: int, has_tls: bool) -> str | None:
    """Why the service is not healthy; None if it is. It asks the catalog's database, and is told no secret."""
    address = f"{'https' if has_tls else 'http'}://{LOOPBACK}:{port}/healthz"
    try:
        with urllib.request.urlopen(address, timeout=2, context=_of_any_name()):
            return None
    except urllib.error.HTTPError as error:
        return f"answers {error.code}"
    except BROKEN_OFF as error:
        return f"no answer ({error})"


def _of_any_name() -> ssl.SSLContext:
    """The certificate is for the name that clients use, which need not be that of this address."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
