"""What the settings say of one source in Postgres, and how patient its reader is."""

from dataclasses import dataclass

from ingestion.sources.postgres.points.patience import Patience
from lakehouse.settings import Settings


@dataclass(frozen=True)
class Configured:
    """One source; `patience` is how long others' transactions in it are waited for."""

    settings: Settings
    name: str
    patience: Patience

    @property
    def slot(self) -> str:
        """Name of the replication slot."""
        return self.settings.source(self.name).slot or f"lakehouse_{self.name}"

    @property
    def on_standby(self) -> bool:
        """Whether it is read from a standby."""
        return self.settings.source(self.name).primary_url is not None

    @property
    def publication(self) -> str:
        """Name of the publication."""
        return self.settings.source(self.name).publication
