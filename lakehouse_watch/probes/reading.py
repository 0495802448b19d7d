"""What a probe finds: occasions to tell, samples to measure, and what keeps a source from being ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lakehouse.metrics import Sample
from lakehouse_watch.alerts import Occasion


@dataclass(frozen=True)
class Reading:
    """One look; `unknown` are the keys of occasions of which it could not tell, of which each stands for those of its
    parts too, or kinds, which end in a slash."""

    occasions: tuple[Occasion, ...] = ()
    samples: tuple[Sample, ...] = ()
    not_ready: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Probe:
    """A look that is repeated every so many seconds; it raises when it cannot tell."""

    name: str
    read: Callable[[], Reading]
    every: float = 0.0
    source: str | None = None
    needs_catalog: bool = False
