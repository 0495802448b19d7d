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

AWAY = (
    "away: it does not answer; nobody was erased again: once the source is up to date, run `lakehouse erase --repeat`"
)


def _declared(name: str) -> Any:
    return SimpleNamespace(name=name, mirrored=("people",) if name == "refusing" else ())


@pytest.fixture
def erased(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources in which subjects were erased again: one in each."""
    found: list[str] = []

    def repeat(settings: Any, declarations: Any, manifest: Any, source: str, say: Any) -> tuple[list[Any], list[str]]:
        found.append(source)
        return [], [f"{source}: in the way"] if source == "refusing" else []

    monkeypatch.setattr(erasure.run, "remembered", lambda settings, name: ("a subject",) if name != "empty" else ())
    monkeypatch.setattr(erasure.run, "repeat", repeat)
    monkeypatch.setattr(ingest, "load_manifest", lambda settings: {})
    monkeypatch.setattr(
        ingest, "load_settings", lambda: SimpleNamespace(connection=lambda name: None, export=SimpleNamespace(url=None))
    )
    monkeypatch.setattr(ingest, "load_declarations", lambda settings: SimpleNamespace(source=_declared))
    monkeypatch.setattr(ingestion, "recover_source", _recover)
    return found


def _recover(settings: Any, declarations: Any, source: str) -> SourceReport:
    if source in ("away", "empty"):
        raise LakehouseError(f"{source}: it does not answer")
    aside = (Aside("people", "parked", "people: a column's type changed"),) if source == "parked" else ()
    return SourceReport(source, 2, "0/1", 1, datetime.now(UTC), (), aside)


@pytest.mark.parametrize(
    ("sources", "again", "said"),
    [
        (["shop", "away"], ["shop"], AWAY),
        (["away", "shop"], ["shop"], AWAY),
        (["empty"], [], "empty: it does not answer"),
        (["parked"], ["parked"], "people: a column's type changed"),
        (
            ["refusing", "away", "parked"],
            ["refusing", "parked"],
            f"refusing: in the way; {AWAY}; people: a column's type changed",
        ),
    ],
)
def test_recovered_sources_are_erased_again_whatever_fails_beside_them(
    erased: list[str], sources: list[str], again: list[str], said: str
) -> None:
    """One that failed kept the persons of all others readable, and no later --recover of it erased there. Its own are
    told of: its next epoch may have begun, and then a plain ingest finishes the recovery."""
    with pytest.raises(LakehouseError) as failed:
        ingest.ingest(sources, recover=True)
    assert (erased, str(failed.value)) == (again, said)


def test_what_was_recovered_is_told_though_nobody_can_be_erased_again(
    erased: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LakehouseError, match="in the way"):
        ingest.ingest(["refusing"], recover=True)
    said = capsys.readouterr()
    assert "refusing: cut 0/1" in said.out
    assert (
        "refusing: mirrors and current views stay behind until a follower, or `lakehouse mirror refusing`" in said.err
    )


def test_why_a_recovery_failed_is_told_where_nobody_can_tell_who_was_erased(
    erased: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def remembered(settings: Any, name: str) -> tuple[str, ...]:
        raise LakehouseError("the catalog does not answer")

    monkeypatch.setattr(erasure.run, "remembered", remembered)
    with pytest.raises(LakehouseError, match=r"^away: it does not answer$"):
        ingest.ingest(["away"], recover=True)
