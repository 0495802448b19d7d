"""What a check of a source found: one line each, with the remedy."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Weight = Literal["in the way", "prepare", "warning"]


@dataclass(frozen=True)
class Finding:
    """`in the way` keeps rows from arriving, or the application from writing; `prepare` is what prepare will do."""

    source: str
    table: str | None
    about: str
    weight: Weight
    says: str
    remedy: str

    @property
    def line(self) -> str:
        """For people."""
        where = f"{self.source}.{self.table}" if self.table else self.source
        return f"{where}: {self.says}: {self.remedy}"

    def as_dict(self) -> Mapping[str, Any]:
        """For machines."""
        return asdict(self)
