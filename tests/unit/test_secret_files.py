"""Secrets that come as files."""

import os
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from lakehouse.errors import LakehouseError
from lakehouse.settings import SourceSettings, load_settings

URL = "postgresql://lake:hunter2@127.0.0.1/lake"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAKEHOUSE_CONFIG", os.devnull)
    made = tmp_path / "secrets"
    made.mkdir()
    monkeypatch.setenv("LAKEHOUSE_SECRETS_DIR", str(made))
    return made


@pytest.fixture
def toml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    file = tmp_path / "lakehouse.toml"
    file.touch()
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(file))
    return file


def test_a_file_is_a_setting(folder: Path) -> None:
    (folder / "LAKEHOUSE_CATALOG_URL").write_text(f"{URL}\n")
    (folder / "LAKEHOUSE_S3__ACCESS_KEY").write_text("known")
    (folder / "LAKEHOUSE_S3__SECRET_KEY").write_text("s3cret")
    (folder / "LAKEHOUSE_SOURCES__SHOP__URL").write_text("postgresql://shop/shop")
    (folder / "of_another_program").write_bytes(b"\xff")
    (folder / "..data").mkdir()
    settings = load_settings()
    assert settings.catalog_dsn() == URL
    assert settings.s3.secret_key is not None and settings.s3.secret_key.get_secret_value() == "s3cret"
    assert list(settings.sources) == ["shop"]


def test_a_variable_wins_over_a_file_and_a_file_over_the_rest(
    folder: Path, toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_SECRETS_DIR", str(folder))
    toml.write_text("catalog_name = 'of_toml'\nwarehouse = 's3://of_toml/'\n")
    (folder / "LAKEHOUSE_CATALOG_NAME").write_text("of_file")
    (folder / "LAKEHOUSE_WAREHOUSE").write_text("s3://of_file/")
    monkeypatch.setenv("LAKEHOUSE_WAREHOUSE", "s3://of_variable/")
    settings = load_settings()
    assert (settings.catalog_name, settings.warehouse) == ("of_file", "s3://of_variable/")


def test_a_misspelt_file_is_named(folder: Path) -> None:
    (folder / "LAKEHOUSE_S3_SECRET_KEY").write_text("s3cret")
    with pytest.raises(LakehouseError, match="LAKEHOUSE_S3_SECRET_KEY is no setting: write LAKEHOUSE_S3__SEC"):
        load_settings()


def test_a_folder_that_is_not_there_is_one_line(folder: Path) -> None:
    folder.rmdir()
    with pytest.raises(LakehouseError, match="LAKEHOUSE_SECRETS_DIR names") as refused:
        load_settings()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [f'catalog_url = "{URL}"', '[s3]\naccess_key = "known"\nsecret_key = "s3cret"', f'[sources.shop]\nurl = "{URL}"',
     '[sources.shop]\nurl = "postgresql://h/d?user=u&password=hunter2"',
     '[sources.shop]\nurl = "postgresql://h/d?sslkey=k&sslpassword=hunter2"',
     '[spark.conf]\n"spark.hadoop.fs.s3a.secret.key" = "hunter2"',
     '[alerts]\nwebhook = "https://hooks.slack.example/services/T0/B0/hunter2"'],
)  # fmt: skip
def test_a_file_with_secrets_that_others_may_read_is_refused(toml: Path, text: str) -> None:
    toml.write_text(text)
    toml.chmod(0o644)
    with pytest.raises(LakehouseError, match=r"holds secrets and has mode 0644: run `chmod 600") as refused:
        load_settings()
    assert "hunter2" not in str(refused.value) and "\n" not in str(refused.value)
    toml.chmod(0o600)
    load_settings()


def test_a_file_without_secrets_may_be_open(toml: Path) -> None:
    toml.write_text(
        'catalog_url = "postgresql://lake@127.0.0.1/lake"\n[trino]\nport = 8081\n[spark.conf]\n"a.b" = "c"\n'
        '[export]\nurl = "postgres://lake@127.0.0.1/lake"\n[alerts]\nwebhook = ""\n'
    )
    toml.chmod(0o644)
    assert load_settings().trino.port == 8081


def test_a_password_comes_from_a_file_of_its_own(toml: Path, tmp_path: Path) -> None:
    """The file of settings can then be read by everybody, and be kept in git."""
    (tmp_path / "reader").write_text("p@ss/w:rd %\n")
    (tmp_path / "owner").write_text("0wner")
    toml.write_text(
        f"[sources.shop]\nurl = 'postgresql://lake@a:1/shop?sslmode=require'\nprimary_url = 'postgresql://lake@c'\n"
        f"owner_url = 'postgresql://owner@a/shop'\npassword_file = '{tmp_path}/reader'\n"
        f"owner_password_file = '{tmp_path}/owner'\n"
    )
    toml.chmod(0o644)
    shop = load_settings().source("shop")
    urls = [url.get_secret_value() for url in (shop.url, shop.primary_url, shop.owner_url) if url]
    assert [conninfo_to_dict(url)["password"] for url in urls] == ["p@ss/w:rd %", "p@ss/w:rd %", "0wner"]
    assert urls[0].endswith("@a:1/shop?sslmode=require")
    assert SourceSettings.model_validate(shop.model_dump()) == shop


@pytest.mark.parametrize(
    ("url", "password", "reason"),
    [("postgresql://lake:other@a/shop", "hunter2", "names the user and no password"),
     ("postgresql://a/shop", "hunter2", "names the user and no password"),
     ("host=a user=lake", "hunter2", "names the user and no password"),
     ("postgresql://lake@a/shop", "", "is empty"), ("postgresql://lake@a/shop", None, "No such file")],
)  # fmt: skip
def test_a_password_file_that_cannot_be_taken_is_named(
    toml: Path, tmp_path: Path, url: str, password: str | None, reason: str
) -> None:
    if password is not None:
        (tmp_path / "reader").write_text(password)
    toml.write_text(f"[sources.shop]\nurl = '{url}'\npassword_file = '{tmp_path}/reader'\n")
    toml.chmod(0o600)
    with pytest.raises(LakehouseError, match=f"password_file {tmp_path}/reader.*{reason}") as refused:
        load_settings()
    assert "hunter2" not in str(refused.value) and "other" not in str(refused.value)
