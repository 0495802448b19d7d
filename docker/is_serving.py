"""Health check of the container `dagster-webserver`: it answers to somebody who knows the secret."""

from urllib.request import Request, urlopen

from lakehouse.settings import load_settings
from orchestration.web.login import ui_secret

settings = load_settings()
address = f"http://127.0.0.1:{settings.dagster.port}/server_info"
urlopen(Request(address, headers={"Authorization": f"Bearer {ui_secret(settings)}"}), timeout=5)
