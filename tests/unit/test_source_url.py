"""How every connection to a source is set: the spelling of values is pinned, what they are is not."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from ingestion.sources.postgres.connection import PINNED, source_url
from lakehouse.errors import LakehouseError
from lakehouse.servers.unreachable import unreachable_source
from lakehouse.settings import Settings, SourceSettings
from lakehouse.text.urls import parse_url


def test_money_is_printed_as_the_source_has_it_and_everything_else_as_ingestion_reads_it() -> None:
    """In another lc_monetary it would be another amount: of yen there are no hundredths."""
    url = source_url(SourceSettings(url=SecretStr("postgresql://r@h/d?options=-c%20lc_monetary%3Dja_JP.utf8")))
    options = dict(parse_url(url).options)["options"]
    assert options.startswith("-c lc_monetary=ja_JP.utf8 ") and options.count("lc_monetary") == 1
    assert all(f"-c {name}={value}" in options for name, value in PINNED.items())
    assert "lc_monetary" not in source_url(SourceSettings(url=SecretStr("postgresql://r@h/d")))


def test_a_pooler_is_told_from_a_server_that_is_down() -> None:
    """PgBouncer 1.18 answers so to what every connection of ingestion says at its start."""
    shop = SourceSettings(url=SecretStr("postgresql://r@db.example.com:6432/d"))
    settings = Settings(home=Path("home"), sources={"shop": shop})
    refused = OSError("connection to server failed: FATAL:  unsupported startup parameter: options")
    assert "that is a pooler" in str(unreachable_source(settings, "shop", refused))
    assert "start that server" in str(unreachable_source(settings, "shop", OSError("Connection refused")))


def test_a_source_that_is_misspelt_is_named_with_the_one_that_is_meant() -> None:
    settings = Settings(home=Path("home"), sources={"retail": SourceSettings(url=SecretStr("postgresql://r@h/d"))})
    with pytest.raises(LakehouseError, match="did you mean 'retail'"):
        settings.source("retial")
    with pytest.raises(LakehouseError, match="set LAKEHOUSE_SOURCES__BANK__URL"):
        settings.source("bank")
