"""Second catalogs that stand still, as the watch and `lakehouse status` see them."""

from dataclasses import replace
from datetime import UTC, datetime

import psycopg
import pytest

from lakehouse.errors import LakehouseError
from lakehouse.servers.exports import Export, ended, followed, noted
from lakehouse.settings import Settings
from lakehouse_cli.machine.stack import said_of
from lakehouse_watch.probes.exports import judge, read_exports

TARGET = "shop at catalogs:5432/second"
SOUND = Export(TARGET, 60.0, 70.0, 10.0, datetime(2026, 11, 1, tzinfo=UTC), None)
STILL = replace(SOUND, stale_seconds=600.0)


@pytest.mark.parametrize(
    ("export", "says"),
    [
        (SOUND, None),
        (replace(SOUND, error="no route"), None),
        (replace(SOUND, every_seconds=0.3, stale_seconds=100.0), None),
        (replace(STILL, every_seconds=3600.0), None),
        (replace(STILL, error="no route"), f"the second catalog {TARGET} is as of 10 minutes ago: no route"),
        (replace(STILL, error="no route", done_at=None), "was never brought up to date: no route"),
        (replace(STILL, tried_seconds=500.0), "was killed, lost its machine or hangs"),
        (replace(STILL, tried_seconds=500.0, error="no route"), "was killed, lost its machine or hangs"),
        (STILL, "exports begin there and do not come to an end"),
        (replace(STILL, every_seconds=0.3), "exports begin there and do not come to an end"),
    ],
)
def test_it_is_told_when_two_turns_were_missed_and_why(export: Export, says: str | None) -> None:
    found = judge(export)
    assert (found and found.summary.endswith(says or "")) == (says and True)
    if found:
        assert (found.key, found.severity) == (f"export/{TARGET}", "error")


def test_an_export_that_was_killed_is_told_until_it_ends_by_itself(catalog_settings: Settings) -> None:
    """It was told by nobody, and engines read files there that maintenance deletes."""
    assert read_exports(catalog_settings).occasions == (), "no state yet"
    ended(catalog_settings, TARGET)
    with noted(catalog_settings, TARGET, 60.0):
        [begun] = followed(catalog_settings)
        assert begun.done_at is None and said_of(begun) == f"{TARGET}, never brought up to date"
    reading = read_exports(catalog_settings)
    assert reading.occasions == ()
    assert [(s.name, s.labels) for s in reading.samples] == [
        ("lakehouse_last_export_timestamp_seconds", (("target", TARGET),))
    ]
    with psycopg.connect(catalog_settings.catalog_dsn()) as state:
        state.execute("UPDATE lakehouse.exports SET done_at = done_at - interval '1 h', tried_at = '2026-01-01'")
    [told] = read_exports(catalog_settings).occasions
    assert told.summary == (
        f"the second catalog {TARGET} is as of 60 minutes ago: "
        "`lakehouse export --follow` was killed, lost its machine or hangs"
    )
    ended(catalog_settings, TARGET)
    assert read_exports(catalog_settings) == type(reading)()


def test_what_a_second_catalog_says_when_it_refuses_is_told(catalog_settings: Settings) -> None:
    for _ in range(2):
        with pytest.raises(LakehouseError), noted(catalog_settings, TARGET, 60.0):
            raise LakehouseError("m.a is another table in the second catalog")
    [refused] = followed(catalog_settings)
    assert refused.error == "m.a is another table in the second catalog" and refused.tried_seconds < 30
    assert said_of(refused) == f"{TARGET}, never brought up to date: {refused.error}"
    with noted(catalog_settings, TARGET, 60.0):
        pass
    [mended] = followed(catalog_settings)
    assert mended.error is None and said_of(mended) == f"{TARGET}, as of 0 s ago"
    ended(catalog_settings, TARGET)
