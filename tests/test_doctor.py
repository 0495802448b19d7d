"""`lakehouse doctor` asks the servers."""

import pytest
from pydantic import SecretStr

from lakehouse.settings import Settings
from lakehouse_cli.machine.doctor import Line, examine

pytestmark = pytest.mark.stack


def _found(settings: Settings) -> dict[str, Line]:
    return {line.about: line for line in examine(settings)}


def test_a_stack_that_runs_is_well_and_a_source_that_is_not_prepared_is_named(settings: Settings) -> None:
    url = settings.sources["bank"].url.get_secret_value().replace("lakehouse_ingest", "nobody_known")
    sources = {**settings.sources, "bank": settings.sources["bank"].model_copy(update={"url": SecretStr(url)})}
    lines = _found(settings.model_copy(update={"sources": sources}))
    for about in ("catalog", "object store", "trino", "servers", "disk"):
        assert lines[about].state == "ok", lines[about]
    assert lines["release"].state in ("ok", "warning")
    assert lines["bank"].state == "error" and "nobody_known" in lines["bank"].remedy


@pytest.mark.slow
def test_what_is_wrong_with_store_and_trino_is_said_with_the_setting(settings: Settings) -> None:
    trino = settings.trino.model_copy(update={"reader_password": SecretStr("wrong")})
    lines = _found(settings.model_copy(update={"warehouse": "/nowhere/lake", "trino": trino}))
    assert lines["object store"].state == "error" and "LAKEHOUSE_WAREHOUSE" in "".join(lines["object store"])
    assert lines["trino"].state == "error" and "LAKEHOUSE_TRINO__USER" in lines["trino"].says
    wrong = settings.s3.model_copy(update={"secret_key": SecretStr("wrong")})
    lines = _found(settings.model_copy(update={"s3": wrong}))
    assert lines["object store"].state == "error" and "LAKEHOUSE_S3__ENDPOINT" in lines["object store"].says
