"""How every connection to a source is set: the spelling of values is pinned, what they are is not."""

from pydantic import SecretStr

from ingestion.sources.postgres.connection import PINNED, source_url
from lakehouse.settings import SourceSettings
from lakehouse.text.urls import parse_url


def test_money_is_printed_as_the_source_has_it_and_everything_else_as_ingestion_reads_it() -> None:
    """In another lc_monetary it would be another amount: of yen there are no hundredths."""
    url = source_url(SourceSettings(url=SecretStr("postgresql://r@h/d?options=-c%20lc_monetary%3Dja_JP.utf8")))
    options = dict(parse_url(url).options)["options"]
    assert options.startswith("-c lc_monetary=ja_JP.utf8 ") and options.count("lc_monetary") == 1
    assert all(f"-c {name}={value}" in options for name, value in PINNED.items())
    assert "lc_monetary" not in source_url(SourceSettings(url=SecretStr("postgresql://r@h/d")))
