"""`lakehouse ingest --recover` erases again in each source that it recovered, whatever becomes of the others."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

import erasure.run
import ingestion
from ingestion.run.reports import Aside, SourceReport
from lakehouse.errors import LakehouseError
from lakehouse_cli.source import ingest


def _declared(name: str) -> Any:
    return SimpleNamespace(name=name)


@pytest.fixture
def erased(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources in which subjects were erased again: one in each."""
    found: list[str] = []

    def repeat(settings: Any, declarations: Any, manifest: Any, source: str) -> tuple[list[Any], list[str]]:
        found.append(source)
        return [], [f"{source}: in the way"] if source == "refusing" else []

    monkeypatch.setattr(erasure.run, "remembered", lambda settings, name: ("a subject",))
    monkeypatch.setattr(erasure.run, "repeat", repeat)
    monkeypatch.setattr(ingest, "load_manifest", lambda settings: {})
    monkeypatch.setattr(ingest, "load_settings", lambda: SimpleNamespace(connection=lambda name: None))
    monkeypatch.setattr(ingest, "load_declarations", lambda settings: SimpleNamespace(source=_declared))
    monkeypatch.setattr(ingestion, "recover_source", _recover)
    return found


def _recover(settings: Any, declarations: Any, source: str) -> SourceReport:
    if source == "away":
        raise LakehouseError("away: it does not answer")
    aside = (Aside("people", "parked", "people: a column's type changed"),) if source == "parked" else ()
    return SourceReport(source, 2, "0/1", 1, datetime.now(UTC), (), aside)


@pytest.mark.parametrize(
    ("sources", "again", "said"),
    [
        (["shop", "away"], ["shop"], "away: it does not answer"),
        (["away", "shop"], ["shop"], "away: it does not answer"),
        (["parked"], ["parked"], "people: a column's type changed"),
        (
            ["refusing", "away", "parked"],
            ["refusing", "parked"],
            "refusing: in the way; away: it does not answer; people: a column's type changed",
        ),
    ],
)
def test_recovered_sources_are_erased_again_whatever_fails_beside_them(
    erased: list[str], sources: list[str], again: list[str], said: str
) -> None:
    """One that failed kept the persons of all others readable, and no later --recover of it erased there."""
    with pytest.raises(LakehouseError) as failed:
        ingest.ingest(sources, recover=True)
    assert (erased, str(failed.value)) == (again, said)


def test_what_was_recovered_is_told_though_nobody_can_be_erased_again(
    erased: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LakehouseError, match="in the way"):
        ingest.ingest(["refusing"], recover=True)
    assert "refusing: cut 0/1" in capsys.readouterr().out
