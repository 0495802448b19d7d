"""A wrong setting is one line that names its variable, and never shows a secret."""

import os
from pathlib import Path
from typing import Literal

import pytest

from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import connect
from lakehouse.settings import Settings, load_settings
from lakehouse_cli.machine import stack
from lakehouse_cli.machine.clients import client_text
from lakehouse_samples.clicks import workload as clicks
from lakehouse_samples.database import owner_url
from lakehouse_stack.home.config import stack_settings

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def _nothing_else_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAKEHOUSE_CONFIG", os.devnull)


def test_a_truth_value_is_no_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`port = true` was port 1."""
    file = tmp_path / "lakehouse.toml"
    file.write_text("[trino]\nport = true\n")
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(file))
    told = r"lakehouse\.toml:2: LAKEHOUSE_TRINO__PORT: a number is wanted, not true"
    with pytest.raises(LakehouseError, match=told):
        load_settings()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LAKEHOUSE_INGESTION__FLUSH_BYTES", "-5"),
        ("LAKEHOUSE_INGESTION__FLUSH_BYTES", "64MB"),
        ("LAKEHOUSE_INGESTION__FLUSH_INTERVAL_SECONDS", "inf"),
        ("LAKEHOUSE_INGESTION__BATHC_BYTES", "16"),
        ("LAKEHOUSE_TRINO__PORT", "99999"),
        ("LAKEHOUSE_TRINO__HTTP_SCHEME", "ftp"),
        ("LAKEHOUSE_SPARK__DRIVER_MEMORY", "-2g"),
        ("LAKEHOUSE_SPARK__DRIVER_MEMORY", "2 gigabytes"),
    ],
)
def test_a_wrong_setting_is_named_as_its_variable(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(LakehouseError, match=variable) as refused:
        load_settings()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("LAKEHOUSE_TRINO_HOST", "write LAKEHOUSE_TRINO__HOST"),
        ("LAKEHOUSE_CATALOG__URL", "there is no section CATALOG"),
        ("LAKEHOUSE_INGESTON__FLUSH_BYTES", "there is no section INGESTON"),
        ("LAKEHOUSE_STACK_TRINO_HEAP", "LAKEHOUSE_STACK_TRINO_HEAP is no setting"),
        ("LAKEHOUSE_DAY_FROM", None),
        ("LAKEHOUSE_CODE_SOCKET", None),
    ],
)
def test_a_variable_that_only_looks_like_a_setting_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, told: str | None
) -> None:
    monkeypatch.setenv(variable, "1")
    if told is None:
        load_settings()
        return
    with pytest.raises(LakehouseError, match=told):
        load_settings()
        stack_settings()


def test_a_file_of_settings_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_CONFIG", "conf/prod.toml")
    with pytest.raises(LakehouseError, match=r"LAKEHOUSE_CONFIG names /.*conf/prod.toml, which is no file"):
        load_settings()


@pytest.mark.parametrize("given", ["conf", None])
def test_a_folder_in_the_place_of_the_settings_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str | None
) -> None:
    """All settings were passed over, and the command worked on a lake of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAKEHOUSE_CONFIG")
    (tmp_path / (given or "lakehouse.toml")).mkdir()
    if given:
        monkeypatch.setenv("LAKEHOUSE_CONFIG", given)
    place = tmp_path / (given or "lakehouse.toml")
    with pytest.raises(LakehouseError, match=f"settings: .* {place}, which is a folder"):
        load_settings()


@pytest.mark.parametrize("blank", ["", "  "])
def test_an_empty_url_is_unset_and_no_database_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, blank: str
) -> None:
    """The lake's state would have been made in whatever database listens at 127.0.0.1:5432."""
    file = tmp_path / "lakehouse.toml"
    file.write_text("catalog_url = 'postgresql://lake@of_toml/lake'\n[sources.crm]\nurl = 'postgresql://u@h/crm'\n")
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(file))
    for name in ("CATALOG_URL", "DAGSTER__STORAGE_URL", "EXPORT__URL", "ALERTS__WEBHOOK", "SOURCES__SHOP__URL",
                 "SOURCES__SHOP__OWNER_URL", "SOURCES__CRM__OWNER_URL", "SOURCES__CRM__PRIMARY_URL"):  # fmt: skip
        monkeypatch.setenv(f"LAKEHOUSE_{name}", blank)
    settings = load_settings()
    assert settings.dagster.storage_url is settings.export.url is settings.alerts.webhook is None
    with pytest.raises(LakehouseError, match="LAKEHOUSE_CATALOG_URL is set and empty: unset the variable"):
        settings.catalog_dsn()
    assert list(settings.sources) == ["crm"]
    assert settings.source("crm").owner_url is settings.source("crm").primary_url is None
    with pytest.raises(LakehouseError, match="set LAKEHOUSE_SOURCES__SHOP__URL"):
        settings.source("shop")
    monkeypatch.setenv("LAKEHOUSE_SOURCES__SHOP__SLOT", "shop")
    with pytest.raises(LakehouseError, match="LAKEHOUSE_SOURCES__SHOP__URL: Value error, is set and empty: unset the"):
        load_settings()


@pytest.mark.parametrize("url", ["postgresql://", "postgresql://:@:/", "postgresql://lake:hunter2@", "user=lake"])
def test_a_url_that_names_no_database_is_none_of_this_machine(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """As one that is put together of variables which are not set."""
    monkeypatch.setenv("LAKEHOUSE_CATALOG_URL", url)
    with pytest.raises(LakehouseError, match="LAKEHOUSE_CATALOG_URL names neither host nor database") as refused:
        load_settings().catalog_dsn()
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"home = 'x'\n# f\xfcr\n", ":2 is not UTF-8: save the file in UTF-8"),
        (b"\xef\xbb\xbfhome = 'x'\n", " begins with a byte order mark: save it as UTF-8 without one"),
        (b"home = \n", " is not TOML: "),
        (b"\nhome = 5\n", ":2: home: a path is wanted, in quotes"),
        (b"cache = true\n", ":1: cache: a path is wanted, in quotes"),
        (b"secrets_dir = 5\n", ":1: secrets_dir: a path is wanted, in quotes"),
        (b"[sources.shop]\nurl = 'postgresql://u@h/d'\npassword_file = 5\n", ":3: LAKEHOUSE_SOURCES__SHOP__PASSWORD_"),
        (b"trino = 5\n", ":1: LAKEHOUSE_TRINO: "),
        (b"s3 = 5\n", ":1: LAKEHOUSE_S3: "),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_up", [False, True])
def test_a_file_of_settings_that_cannot_be_read_is_one_line_that_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, told: str, is_up: bool
) -> None:
    file = tmp_path / "lakehouse.toml"
    file.write_bytes(content)
    file.chmod(0o600)
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(file))
    if b"home" not in content:
        monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    else:
        monkeypatch.delenv("LAKEHOUSE_HOME")
    if is_up:
        (tmp_path / "endpoints.toml").write_text("[trino]\nport = 1\n[s3]\nendpoint = 'http://h'\n")
    with pytest.raises(LakehouseError) as refused:
        load_settings()
    assert str(refused.value).startswith(f"settings: {file}{told}") and "\n" not in str(refused.value)


def test_a_file_that_up_wrote_and_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    (tmp_path / "endpoints.toml").write_text("[trino\n")
    with pytest.raises(LakehouseError, match=rf"settings: {tmp_path}/endpoints.toml is not TOML"):
        load_settings()


def test_a_number_that_is_refused_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_INGESTION__FLUSH_BYTES", "64MB")
    with pytest.raises(LakehouseError, match="LAKEHOUSE_INGESTION__FLUSH_BYTES is '64MB'"):
        load_settings()


@pytest.mark.parametrize("port", ["99999", "-1", "0", "http"])
def test_a_port_of_the_stack_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    monkeypatch.setenv("LAKEHOUSE_STACK_TRINO_PORT", port)
    with pytest.raises(LakehouseError, match=f"LAKEHOUSE_STACK_TRINO_PORT is '{port}'"):
        stack_settings()


@pytest.mark.parametrize(
    "value", [f'{{"shop": "{SECRET}"}}', f'{{"shop": {{"owner_url": "{SECRET}"}}}}', f"{{{SECRET}"]
)
def test_sources_that_are_not_as_they_should_be_are_refused_without_their_text(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("LAKEHOUSE_SOURCES", value)
    with pytest.raises(LakehouseError, match="LAKEHOUSE_SOURCES") as refused:
        load_settings()
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[sources.shop]\nurl = "{}"\n\n[sources."My Shop"] # the old one\nurl = "{}"', "4: source 'My Shop'"),
        ('[sources]\n"my.shop".url = "{}"', "2: source 'my.shop'"),
        ('[sources]\nShop = {{ url = "{}" }}', "2: source 'Shop'"),
        ('[sources]\n"My Shop" = {{ url = "{}" }}', "2: source 'My Shop'"),
        ('sources."größe".url = "{}"', "1: source 'größe'"),
    ],
)
def test_a_source_that_nothing_can_declare_is_refused_with_its_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, line: str
) -> None:
    """It was accepted, and the declared source had no connection."""
    url = f"postgresql://ingest:{SECRET}@db/shop"
    file = tmp_path / "lakehouse.toml"
    file.write_text(text.format(url, url))
    file.chmod(0o600)
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(file))
    with pytest.raises(LakehouseError) as refused:
        load_settings()
    said = f"{file}:{line}: no source can be declared by this name: use a-z, 0-9 and _, beginning with a letter"
    assert str(refused.value) == f"settings: {said}; see docs/reference/settings.md"


def test_a_variable_of_a_source_that_nothing_can_declare_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "lakehouse.toml"
    file.write_text("[sources]\n")
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(file))
    monkeypatch.setenv("LAKEHOUSE_SOURCES__MY-SHOP__URL", "postgresql://db/shop")
    with pytest.raises(LakehouseError, match=r"^settings: LAKEHOUSE_SOURCES__MY-SHOP: source 'my-shop': no source can"):
        load_settings()
    monkeypatch.setenv("LAKEHOUSE_SOURCES__MY-SHOP__URL", "")
    assert load_settings().sources == {}


@pytest.mark.parametrize("key", ["url", "owner_url"])
def test_a_source_whose_url_is_none_is_named_with_the_variable(key: str) -> None:
    urls = {"url": "postgresql://reader@db/shop"} | {key: f"postgresql://u:{SECRET}/@db"}
    settings = Settings.model_validate({"sources": {"shop": urls}})
    with pytest.raises(LakehouseError, match=f"LAKEHOUSE_SOURCES__SHOP__{key.upper()} is not a libpq URL") as refused:
        settings.source("shop")
    assert SECRET not in str(refused.value)


def test_a_password_for_trino_is_not_sent_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_TRINO__PASSWORD", SECRET)
    with pytest.raises(LakehouseError, match="a password needs http_scheme = https") as refused:
        load_settings()
    assert SECRET not in str(refused.value)


def test_a_trino_of_ones_own_takes_nothing_over_of_the_embedded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its address would get the embedded one's password, and be checked with its certificate."""
    home = tmp_path / "home"
    home.mkdir()
    written = '[trino]\nhost = "127.0.0.1"\nport = 1\nhttp_scheme = "https"\npassword = "secret"\nca = "/ca.pem"\n'
    (home / "endpoints.toml").write_text(written)
    assert load_settings().trino.password is not None
    file = tmp_path / "lakehouse.toml"
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(file))
    file.write_text('[trino]\nhost = "trino.example.com"\n')
    monkeypatch.setenv("LAKEHOUSE_TRINO__PORT", "8443")
    trino = load_settings().trino
    assert (trino.host, trino.port, trino.http_scheme) == ("trino.example.com", 8443, "http")
    assert trino.password is None and trino.ca is None and trino.login("writer").user == trino.user


STORE = """\
catalog_url = "postgresql://127.0.0.1/lake"
warehouse = "s3://warehouse/"
[s3]
endpoint = "http://127.0.0.1:9"
access_key = "embedded"
secret_key = "embedded"
"""


@pytest.mark.parametrize(
    ("given", "is_embedded"),
    [
        ({}, True), ({"WAREHOUSE": "s3://warehouse/shop/"}, True), ({"S3__ENDPOINT": "http://localhost:9/"}, True),
        ({"WAREHOUSE": "s3://my-lake/"}, False), ({"S3__ENDPOINT": "https://minio.example.com"}, False),
    ],
)  # fmt: skip
def test_a_store_of_ones_own_gets_neither_address_nor_keys_of_the_embedded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], is_embedded: bool
) -> None:
    """With a bucket at AWS and its default keys, the local server was asked for it, and nothing could unset that."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "endpoints.toml").write_text(STORE)
    for name, value in given.items():
        monkeypatch.setenv(f"LAKEHOUSE_{name}", value)
    s3 = load_settings().s3
    assert (s3.access_key is not None) == (s3.secret_key is not None) == is_embedded
    assert (s3.endpoint or "").replace("localhost", "127.0.0.1").startswith("http://127.0.0.1:9") == is_embedded


SAMPLES = """\
[sources.bank]
url = "postgresql://lakehouse_ingest:p@127.0.0.1:9/bank"
owner_url = "postgresql://app:p@127.0.0.1:9/bank"
[sources.clicks]
kind = "kafka"
bootstrap_servers = "127.0.0.1:9"
"""


@pytest.mark.parametrize(
    ("url", "is_embedded"),
    [
        ("postgresql://me@127.0.0.1:9/bank", True), ("postgresql://me@localhost:9/bank", True),
        ("host=127.0.0.1 port=9 dbname=bank", True),
        ("postgresql://me@db.example.com/bank", False), ("postgresql://me@127.0.0.1:5432/bank", False),
        ("postgresql://me@127.0.0.1:9/other", False), ("nonsense", False),
    ],
)  # fmt: skip
def test_a_source_by_the_name_of_a_sample_has_not_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, is_embedded: bool
) -> None:
    """`prepare` and `remove` of a database called `bank` changed the sample, without a word."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "endpoints.toml").write_text(SAMPLES)
    file = tmp_path / "lakehouse.toml"
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(file))
    file.touch(0o600)
    file.write_text(f'[sources.bank]\nurl = "{url}"\n')
    settings = load_settings()
    assert (settings.databases["bank"].owner_url is not None) == is_embedded
    assert "clicks" in settings.sources, "the other samples stay"
    if url == "nonsense":
        return
    file.write_text(f'[sources.bank]\nurl = "{url}"\nowner_url = "{url}"\n')
    if is_embedded:
        assert owner_url(load_settings(), "bank") == url
        return
    with pytest.raises(LakehouseError, match="source 'bank' has the name of a sample and leads elsewhere"):
        owner_url(load_settings(), "bank")


def test_a_source_by_the_name_of_the_sample_in_kafka_may_be_a_database_or_other_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `url`: "unknown key `url`: did you mean `url`?"."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "endpoints.toml").write_text(SAMPLES)
    monkeypatch.setenv("LAKEHOUSE_SOURCES__CLICKS__KIND", "debezium")
    monkeypatch.setenv("LAKEHOUSE_SOURCES__CLICKS__BOOTSTRAP_SERVERS", "127.0.0.1:9")
    assert load_settings().debezium("clicks").bootstrap_servers == "127.0.0.1:9"
    with pytest.raises(LakehouseError, match="source 'clicks' has the name of a sample and leads elsewhere"):
        clicks.count(load_settings())
    monkeypatch.delenv("LAKEHOUSE_SOURCES__CLICKS__KIND")
    assert load_settings().kafka("clicks").bootstrap_servers == "127.0.0.1:9", "the sample itself"
    monkeypatch.setenv("LAKEHOUSE_SOURCES__CLICKS__BOOTSTRAP_SERVERS", "kafka.example.com:9092")
    with pytest.raises(LakehouseError):
        load_settings()  # of which kind it is has to be said
    monkeypatch.delenv("LAKEHOUSE_SOURCES__CLICKS__BOOTSTRAP_SERVERS")
    monkeypatch.setenv("LAKEHOUSE_SOURCES__CLICKS__URL", "postgresql://me@db/clicks")
    assert load_settings().source("clicks").owner_url is None


@pytest.mark.parametrize("name", ["ACCESS_KEY", "SECRET_KEY"])
def test_half_a_login_to_the_store_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It was ignored, and the keys of AWS' default chain were used."""
    monkeypatch.setenv(f"LAKEHOUSE_S3__{name}", SECRET)
    with pytest.raises(LakehouseError, match="access_key and secret_key belong together") as refused:
        load_settings()
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("name", ["CATALOG_URL", "WAREHOUSE", "S3__ENDPOINT"])
def test_up_starts_no_stack_in_the_home_of_a_lake_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Advised for Spark's jars, it filled the unset settings with those of a lake of its own."""
    started: list[object] = []
    monkeypatch.setattr("lakehouse_stack.control.start_stop.up", lambda *given, **named: started.append(given))
    values = {"CATALOG_URL": "postgresql://db/lake", "WAREHOUSE": "s3://my-lake/", "S3__ENDPOINT": "http://store:9"}
    monkeypatch.setenv(f"LAKEHOUSE_{name}", values[name])
    with pytest.raises(LakehouseError, match=rf"^LAKEHOUSE_{name}: .* `python -m lakehouse_stack jars`"):
        stack.up()
    assert not started
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "endpoints.toml").write_text("")
    stack.up()
    monkeypatch.delenv(f"LAKEHOUSE_{name}")
    (tmp_path / "home" / "endpoints.toml").unlink()
    stack.up()
    assert len(started) == 2, "a stack that is there starts, and so does one of which nothing is set"


@pytest.mark.parametrize("role", ["reader", "privacy"])
def test_a_role_without_a_login_is_refused_and_never_the_writer(
    monkeypatch: pytest.MonkeyPatch, role: Literal["reader", "privacy"]
) -> None:
    """`lakehouse sql` dropped tables and charts showed personal data, on a Trino of one's own with one login."""
    monkeypatch.setenv("LAKEHOUSE_TRINO__HOST", "trino.example.com")
    monkeypatch.setenv("LAKEHOUSE_TRINO__HTTP_SCHEME", "https")
    monkeypatch.setenv("LAKEHOUSE_TRINO__PASSWORD", SECRET)
    settings = load_settings()
    refusal = rf"the role {role} has no login: set LAKEHOUSE_TRINO__{role.upper()}_USER .*`lakehouse sql --role writer`"
    for ask in (settings.trino.login, lambda asked: connect(settings, asked)):
        with pytest.raises(LakehouseError, match=refusal) as refused:
            ask(role)
        assert SECRET not in str(refused.value)
    if role == "reader":
        with pytest.raises(LakehouseError, match=refusal):
            client_text(settings, "duckdb")
    monkeypatch.setenv(f"LAKEHOUSE_TRINO__{role.upper()}_PASSWORD", SECRET)
    with pytest.raises(LakehouseError, match=f"{role}_password needs {role}_user"):
        load_settings()
    monkeypatch.setenv(f"LAKEHOUSE_TRINO__{role.upper()}_USER", "ada")
    assert load_settings().trino.login(role).user == "ada"


@pytest.mark.parametrize(
    ("given", "is_embedded"),
    [
        ({"HOST": "127.0.0.1"}, True), ({"HOST": "localhost", "PORT": "1"}, True), ({"PORT": "1"}, True),
        ({"PORT": "8080"}, False), ({"HOST": "127.0.0.1", "PORT": "8080"}, False),
    ],
)  # fmt: skip
def test_the_address_of_the_embedded_trino_may_be_set_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], is_embedded: bool
) -> None:
    """As in a home of the release before, where the address was all there was to know."""
    (tmp_path / "home").mkdir()
    written = '[trino]\nhost = "127.0.0.1"\nport = 1\nhttp_scheme = "https"\npassword = "secret"\nca = "/ca.pem"\n'
    (tmp_path / "home" / "endpoints.toml").write_text(written)
    for name, value in given.items():
        monkeypatch.setenv(f"LAKEHOUSE_TRINO__{name}", value)
    assert (load_settings().trino.password is not None) == is_embedded


def test_an_address_in_a_secret_file_takes_no_embedded_password_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "endpoints.toml").write_text('[trino]\nhttp_scheme = "https"\npassword = "secret"\n')
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "LAKEHOUSE_TRINO__HOST").write_text("trino.example.com\n")
    monkeypatch.setenv("LAKEHOUSE_SECRETS_DIR", str(tmp_path / "secrets"))
    assert load_settings().trino.host == "trino.example.com"
    assert load_settings().trino.password is None


@pytest.mark.parametrize("name", ["HOME", "CACHE"])
def test_a_path_with_a_comma_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Spark took it for two folders, and put what it spills into the open one before the comma."""
    monkeypatch.setenv(f"LAKEHOUSE_{name}", str(tmp_path / "a,b"))
    with pytest.raises(LakehouseError, match=f"LAKEHOUSE_{name}: .*a,b has a comma") as refused:
        load_settings()
    assert "\n" not in str(refused.value)


def test_paths_in_the_projects_file_are_as_from_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They were of the folder that a command ran in: the units of a server found no password, and no authority."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
    (project / "word").write_text("secret\n")
    for made in (project, project / "word"):
        made.chmod(0o700)
    (project / "lakehouse.toml").write_text(
        'cache = "downloads"\n[trino]\nca = "ca.pem"\n[s3]\nca = "/etc/ca.pem"\n'
        '[sources.shop]\nurl = "postgresql://reader@db/shop"\npassword_file = "word"\n'
    )
    (project / "lakehouse.toml").chmod(0o600)
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(project / "lakehouse.toml"))
    monkeypatch.delenv("LAKEHOUSE_CACHE", raising=False)
    settings = load_settings()
    assert settings.cache == project / "downloads"
    assert (settings.trino.ca, settings.s3.ca) == (project / "ca.pem", Path("/etc/ca.pem"))
    assert "secret" in settings.source("shop").url.get_secret_value()
