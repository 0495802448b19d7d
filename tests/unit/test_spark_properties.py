"""What a Spark session is told, and what it is refused with."""

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from lakehouse.errors import LakehouseError
from lakehouse.servers.spark import AUTHENTICATED, JARS, OVERRIDES, spark_properties
from lakehouse.settings import PROJECT_DIR, Settings, load_settings

SECRET, LOCAL = "s" * 32, Path("/local")


@pytest.fixture(autouse=True)
def _nothing_else_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAKEHOUSE_CONFIG", os.devnull)
    (tmp_path / "artifacts" / "jars").mkdir(parents=True)
    for jar in JARS:
        (tmp_path / "artifacts" / "jars" / jar).touch()
    for folder in OVERRIDES:
        (tmp_path / "artifacts" / folder).mkdir(parents=True)
    monkeypatch.setenv("LAKEHOUSE_CACHE", str(tmp_path))


def with_spark(**spark: Any) -> Settings:
    return load_settings(catalog_url="postgresql://a:b@127.0.0.1/lake", spark=spark)


@pytest.mark.parametrize("master", ["local[2]", "k8s://https://cluster"])
def test_spark_makes_the_secret_itself_where_it_can_hand_it_on(master: str) -> None:
    properties = spark_properties(with_spark(master=master), "test", LOCAL)
    assert properties.items() >= AUTHENTICATED.items()
    assert "spark.authenticate.secret" not in properties


def test_a_session_on_a_standalone_cluster_has_the_clusters_secret() -> None:
    properties = spark_properties(with_spark(master="spark://host:7077", secret=SECRET), "test", LOCAL)
    assert properties["spark.authenticate.secret"] == SECRET


def test_without_the_clusters_secret_the_refusal_names_the_setting() -> None:
    with pytest.raises(LakehouseError, match="set LAKEHOUSE_SPARK__SECRET") as refused:
        spark_properties(with_spark(master="spark://host:7077"), "test", LOCAL)
    assert "\n" not in str(refused.value)


def test_a_cluster_without_authentication_is_a_choice_that_is_written_down() -> None:
    conf = {"spark.authenticate": "false", "spark.network.crypto.enabled": "false"}
    properties = spark_properties(with_spark(master="spark://host:7077", conf=conf), "test", LOCAL)
    assert properties["spark.authenticate"] == "false"


def test_master_and_workers_in_containers_are_told_the_same() -> None:
    lines = (PROJECT_DIR / "docker" / "spark.conf").read_text().splitlines()
    told = dict(line.split() for line in lines if line.startswith("spark."))
    assert told.items() >= AUTHENTICATED.items()
    assert told["spark.master.rest.enabled"] == "false"


def test_without_the_fixed_releases_spark_does_not_start_on_its_own_ones() -> None:
    settings = with_spark()
    (settings.artifacts / OVERRIDES[0]).rmdir()
    with pytest.raises(LakehouseError, match="missing; run `python -m lakehouse_stack jars`"):
        spark_properties(settings, "test", LOCAL)


def test_a_home_with_spaces_is_one_java_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark takes the line apart at spaces, and Java took the rest of the path for the class to run."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / 'my "own" lake'))
    options = shlex.split(spark_properties(with_spark(), "test", LOCAL)["spark.driver.extraJavaOptions"])
    assert options[-1] == f'-Dderby.system.home={tmp_path}/my "own" lake/data/derby'
