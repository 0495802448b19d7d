"""Which pages there are."""

from collections.abc import Callable, Mapping

from lakehouse_cli.reference.commands import commands_page
from lakehouse_cli.reference.metrics import columns_page, metrics_page
from lakehouse_cli.reference.settings import settings_page

PAGES: Mapping[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "settings.md": settings_page,
    "metrics.md": metrics_page,
    "metadata-columns.md": columns_page,
}
