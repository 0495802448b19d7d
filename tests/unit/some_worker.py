"""A worker without servers: it has what a test gives it, and whatever else it asks for fails."""

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from orchestration.worker.budget import TestBudget
from orchestration.worker.loader import Loader
from orchestration.worker.project import Project
from orchestration.worker.quiet import Quiet
from orchestration.worker.reports.telling import Telling
from orchestration.worker.reports.untold import Untold
from orchestration.worker.worker import Worker

OF_LAKE = ("newest", "in_place", "without_load", "has", "recorded")


def some_project(**given: Any) -> Project:
    """A project of which nothing else is known."""
    return Project(**{field.name: None for field in fields(Project)} | given)


def some_loader(**given: Any) -> Loader:
    """What loads; of the lake and of the project it has what is given by name. `held` holds no marts back."""
    held, project = given.pop("held", None), project_in(given)
    lake = SimpleNamespace(in_place=lambda _: {}, without_load=lambda _: set())
    vars(lake).update({name: given.pop(name) for name in OF_LAKE if name in given})
    loader = Loader(**{field.name: None for field in fields(Loader)} | {"project": project, "lake": lake} | given)
    if held is not None:
        loader._held = held  # type: ignore[method-assign]
    return loader


def some_worker(**given: Any) -> Worker:
    """A worker, with a loader of what is given by the names of its fields; others are attributes of its own."""
    worker = object.__new__(Worker)
    shared = {"quiet": Quiet(), "untold": Untold(), "tests": TestBudget(), "instance": None, "connection": None}
    shared |= {name: given.pop(name) for name in ("states", *shared) if name in given}
    own = {name: given.pop(name) for name in [*given] if name.startswith("_")}
    loader = some_loader(**shared, **given)
    defaults = {
        "_project": loader.project, "_lake": loader.lake, "_loader": loader, "_state": loader.states, "_away": False,
        "_catalog": SimpleNamespace(name="lake"), "_telling": Telling(*[None] * 6), "_settings": None,
        "_may_have_left": False, "_is_told_late": False, "_dbt": SimpleNamespace(refresh=lambda: False),
        "_mirrors": SimpleNamespace(report=lambda: None),
    }  # fmt: skip
    vars(worker).update({f"_{name}": value for name, value in shared.items() if name != "states"} | defaults | own)
    return worker


def project_in(given: dict[str, Any]) -> Project:
    """The project of what is given of it, which is taken out."""
    return some_project(**{field.name: given.pop(field.name) for field in fields(Project) if field.name in given})
