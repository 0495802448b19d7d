"""The rendered templates, and what other users can see of them."""

import json
import re
import stat
import tomllib
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
import yaml
from dagster._core.instance.ref import InstanceRef
from dagster._serdes import serialize_value
from jinja2 import UndefinedError

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import write_private
from lakehouse.servers.logins import ROLES
from lakehouse.settings import ServeSettings, load_settings
from lakehouse_stack.control.endpoints import endpoints, to_toml, write_endpoints
from lakehouse_stack.control.start_stop import locked_home
from lakehouse_stack.home.config import SAMPLE_DATABASES, SERVERS, StackSettings
from lakehouse_stack.home.credentials import NAMES, ensure_credentials
from lakehouse_stack.home.instance import dagster_yaml, ensure_instance, password_file
from lakehouse_stack.processes.accounts import ServerPlacement
from lakehouse_stack.servers import reads as reading
from lakehouse_stack.servers import serve as serving
from lakehouse_stack.servers.kafka import format_command
from lakehouse_stack.servers.reads import reads_server
from lakehouse_stack.servers.serve import serve_server
from lakehouse_stack.servers.trino import trino_files
from lakehouse_stack.templates.render import render
from orchestration.instance import outdated

PORTS = {"sources": 21001, "catalog": 21002, "s3": 21003, "trino": 21004, "dagster": 21005,
         "follower_metrics": 21006, "watch_metrics": 21007, "serve": 21008, "worker_metrics": 21009}  # fmt: skip
CREDENTIALS = {name: f"secret-{name}" for name in NAMES}


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    return load_settings()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_missing_value_is_an_error_rather_than_an_empty_string():
    with pytest.raises(UndefinedError):
        render("postgresql.conf.j2", cluster="sources")


def test_only_the_source_cluster_writes_logical_wal():
    common = {"listen": "127.0.0.1", "port": 1, "sockets": False, "hba": "/data/hba"}
    assert "wal_level = 'logical'" in render("postgresql.conf.j2", cluster="sources", **common)
    assert "wal_level" not in render("postgresql.conf.j2", cluster="catalog", **common)


@pytest.fixture
def trino() -> dict[str, str]:
    return trino_files(
        etc=Path("/etc/trino"), certificate=Path("/tls/trino.pem"), access=Path("/access"),
        port=21004, heap_mb=2048, host="127.0.0.1", bind="127.0.0.1",
        catalog_jdbc="jdbc:postgresql://h/lake", s3_endpoint="http://s3",
    )  # fmt: skip


def properties(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))


def test_trinos_memory_fits_in_its_heap_and_it_listens_on_loopback_alone(trino):
    values = properties(trino["config.properties"])
    assert values["query.max-memory-per-node"] == "1024MB"
    assert values["memory.heap-headroom-per-node"] == "512MB"
    assert values["retry-policy"] == "NONE"
    options = trino["jvm.config"].splitlines()
    assert "-Xmx2048m" in options
    assert all(option.startswith("-") for option in options)
    assert properties(trino["node.properties"])["node.bind-ip"] == "127.0.0.1"


def test_trino_has_no_port_without_tls_for_clients_and_asks_for_a_password(trino):
    values = properties(trino["config.properties"])
    assert values["http-server.http.enabled"] == "false" and values["http-server.https.port"] == "21004"
    assert values["http-server.authentication.allow-insecure-over-http"] == "false"
    assert values["http-server.authentication.type"] == "PASSWORD"
    for name in ("password-authenticator", "access-control", "group-provider"):
        assert properties(trino[f"{name}.properties"])[f"{name}.name"] == "file"


def test_on_loopback_alone_trino_speaks_to_itself_without_tls():
    common = {
        "etc": Path("/etc/trino"), "certificate": Path("/tls/trino.pem"), "access": Path("/access"), "port": 21004,
        "heap_mb": 2048, "catalog_jdbc": "jdbc:postgresql://h/lake", "s3_endpoint": "http://s3",
    }  # fmt: skip
    here = properties(
        trino_files(**common, host="127.0.0.1", bind="127.0.0.1", internal_port=21010)["config.properties"]
    )
    there = properties(trino_files(**common, host="trino")["config.properties"])
    assert here["http-server.http.port"] == "21010" and here["discovery.uri"] == "http://127.0.0.1:21010"
    assert here["http-server.authentication.allow-insecure-over-http"] == "false"
    assert there["discovery.uri"] == "https://trino:21004" and there["internal-communication.https.required"] == "true"


def test_trinos_files_hold_no_secret(trino):
    values = properties(trino["catalog/lake.properties"])
    assert values["iceberg.jdbc-catalog.connection-password"] == "${ENV:LAKEHOUSE_TRINO_CATALOG_PASSWORD}"
    assert values["s3.aws-secret-key"] == "${ENV:LAKEHOUSE_S3_SECRET_KEY}"
    internal = properties(trino["config.properties"])["internal-communication.shared-secret"]
    assert internal == "${ENV:LAKEHOUSE_TRINO_INTERNAL}"


@pytest.mark.parametrize("script", ["sources.sql.j2", "catalog.sql.j2"])
def test_the_set_up_scripts_hold_no_secret_and_stop_at_the_first_error(script):
    text = render(script, databases=SAMPLE_DATABASES, generated=True)
    assert "\\set ON_ERROR_STOP on" in text
    assert "PASSWORD '" not in text


def test_only_a_password_that_nobody_chose_is_hashed_in_one_round():
    """Dagster connects some hundred times a minute, and an idle daemon spent half of its time on the rounds."""
    made = render("catalog.sql.j2", generated=True)
    before, _, after = made.partition("ALTER ROLE dagster")
    assert before.rstrip().endswith("SET scram_iterations = 1;") and "RESET scram_iterations" in after
    assert before.index("ALTER ROLE trino") < before.index("SET scram_iterations"), "of no other role"
    assert "scram" not in render("catalog.sql.j2", generated=False), "a person may have chosen it, and Postgres be 15"


def test_dagsters_instance_limits_pools_and_frees_those_of_killed_runs():
    instance = yaml.safe_load(dagster_yaml(json.dumps("postgresql://u:p@h/dagster"), Path("/logs")))
    assert instance["storage"]["postgres"]["postgres_url"] == "postgresql://u:p@h/dagster"
    assert instance["concurrency"]["pools"]["default_limit"] == 1
    assert instance["run_monitoring"]["enabled"] is True
    assert instance["run_monitoring"]["free_slots_after_run_end_seconds"] > 0
    assert instance["telemetry"]["enabled"] is False


def test_dagsters_storage_may_come_from_the_environment():
    instance = yaml.safe_load(dagster_yaml("{env: DAGSTER_URL}", Path("/logs")))
    assert instance["storage"]["postgres"]["postgres_url"] == {"env": "DAGSTER_URL"}


def test_the_endpoints_are_read_back_as_settings(own):
    write_endpoints(own, own.home / "access", own.home / "s3", PORTS, CREDENTIALS)
    read = load_settings()
    assert read.trino.port == 21004 and read.trino.http_scheme == "https" and read.trino.ca is not None
    assert {role: read.trino.login(role).user for role in ROLES} == {
        "writer": "lakehouse", "reader": "reader", "privacy": "privacy"
    }  # fmt: skip
    assert read.dagster.port == 21005
    assert read.s3.endpoint == "http://127.0.0.1:21003"
    assert read.s3.folder == own.home / "s3", "a store of one's own has none"
    assert set(read.sources) == set(SAMPLE_DATABASES)
    assert read.catalog_dsn() == "postgresql://lakehouse:secret-lakehouse@127.0.0.1:21002/lake"


def test_the_first_day_of_backfills_is_kept_when_the_stack_starts_again(own):
    write_endpoints(own, own.home / "access", own.home / "s3", PORTS, CREDENTIALS)
    path = own.home / "endpoints.toml"
    path.write_text(re.sub(r'first_day = ".*"', 'first_day = "2020-02-02"', path.read_text()))
    write_endpoints(own, own.home / "access", own.home / "s3", PORTS, CREDENTIALS)
    assert load_settings().dagster.first_day == date(2020, 2, 2)


def test_dagster_is_told_the_driver_it_is_written_for(own):
    write_endpoints(own, own.home / "access", own.home / "s3", PORTS, CREDENTIALS)
    instance = yaml.safe_load((own.dagster_home / "dagster.yaml").read_text())
    assert instance["storage"]["postgres"]["postgres_url"].startswith("postgresql+psycopg2://dagster@")


def test_dagsters_database_may_be_the_users_own(own, monkeypatch):
    monkeypatch.setenv("LAKEHOUSE_DAGSTER__STORAGE_URL", "postgres://me:secret@db.example/runs")
    ensure_instance(load_settings())
    write_endpoints(own, own.home / "access", own.home / "s3", PORTS, CREDENTIALS)
    instance = yaml.safe_load((own.dagster_home / "dagster.yaml").read_text())
    url = instance["storage"]["postgres"]["postgres_url"]
    assert url == f"postgresql+psycopg2://me@db.example/runs?passfile={own.dagster_home}/pgpass"
    assert password_file(own).read_text() == "*:*:*:*:secret\n" and mode(password_file(own)) == 0o600


def test_the_password_of_dagsters_database_is_in_no_argument(own, monkeypatch):
    """Dagster starts its processes with `--instance-ref`, which has the URL of dagster.yaml in it: `ps` showed it."""
    url = "postgresql://me:p%3Ass%5Cw%C3%A9rd@db.example:6000/runs?sslmode=require&password=other"
    monkeypatch.setenv("LAKEHOUSE_DAGSTER__STORAGE_URL", url)
    ensure_instance(load_settings())
    reference = serialize_value(InstanceRef.from_dir(str(own.dagster_home)))
    assert "me@db.example:6000/runs?sslmode=require&passfile=" in reference
    assert not [secret for secret in ("p%3A", "p:ss", "other") if secret in reference]
    assert password_file(own).read_text() == "*:*:*:*:other\n", "libpq takes the last one"


@pytest.mark.parametrize("password", ["secret", "p:ss\\w", "sécret"])
def test_the_file_of_an_earlier_release_is_mended_and_otherwise_left_as_it_is(own, password):
    url = f"postgresql+psycopg2://dagster:{quote(password, safe='é')}@127.0.0.1:1/dagster"
    before = dagster_yaml(json.dumps(url), Path("/logs")).replace("max_concurrent_runs: 4", "max_concurrent_runs: 9")
    write_private(own.dagster_home / "dagster.yaml", before)
    ensure_instance(own)
    instance = yaml.safe_load((own.dagster_home / "dagster.yaml").read_text())
    here = f"postgresql+psycopg2://dagster@127.0.0.1:1/dagster?passfile={own.dagster_home}/pgpass"
    assert instance["storage"]["postgres"]["postgres_url"] == here
    assert instance["concurrency"]["runs"]["max_concurrent_runs"] == 9
    assert password_file(own).read_text() == "*:*:*:*:" + re.sub(r"([:\\])", r"\\\1", password) + "\n"
    assert mode(own.dagster_home / "dagster.yaml") == 0o600


def test_a_database_or_password_that_changes_is_taken_and_the_rest_of_the_file_kept(own, monkeypatch):
    """`dev` stayed on the former database, while the watch looked into the new, empty one."""
    file = own.dagster_home / "dagster.yaml"

    def stored(url: str) -> str:
        monkeypatch.setenv("LAKEHOUSE_DAGSTER__STORAGE_URL", url)
        ensure_instance(load_settings())
        return yaml.safe_load(file.read_text())["storage"]["postgres"]["postgres_url"]

    passfile = f"?passfile={own.dagster_home}/pgpass"
    stored("postgresql://me@db.example/runs")
    write_private(file, file.read_text().replace("max_concurrent_runs: 4", "max_concurrent_runs: 9"))
    assert stored("postgresql://me:one@db.example/runs") == f"postgresql+psycopg2://me@db.example/runs{passfile}"
    kept = file.read_text()
    assert stored("postgresql://me:two@db.example/runs") == f"postgresql+psycopg2://me@db.example/runs{passfile}"
    assert password_file(own).read_text() == "*:*:*:*:two\n" and file.read_text() == kept
    assert stored("postgresql://me:two@other.example/r") == f"postgresql+psycopg2://me@other.example/r{passfile}"
    assert yaml.safe_load(file.read_text())["concurrency"]["runs"]["max_concurrent_runs"] == 9
    assert mode(file) == 0o600


def test_the_logs_of_runs_move_with_the_home(own, monkeypatch, tmp_path):
    """Dagster made the former home's folder again, and wrote there."""
    monkeypatch.setenv("LAKEHOUSE_DAGSTER__STORAGE_URL", "postgresql://me:one@db.example/runs")
    ensure_instance(load_settings())
    moved = tmp_path / "moved # here"
    own.home.rename(moved)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(moved))
    ensure_instance(load_settings())
    instance = yaml.safe_load((moved / "dagster" / "dagster.yaml").read_text())
    assert instance["compute_logs"]["config"]["base_dir"] == str(moved / "logs" / "dagster")
    assert str(moved) in unquote(instance["storage"]["postgres"]["postgres_url"])


@pytest.mark.parametrize("made_again", [False, True])
def test_logs_that_a_former_release_left_at_the_place_of_a_moved_home_come_to_it(
    own, monkeypatch, tmp_path, made_again
):
    """It had moved the URL alone, so that nothing differed any more; and Dagster had made the folder again."""
    monkeypatch.setenv("LAKEHOUSE_DAGSTER__STORAGE_URL", "postgresql://me:one@db.example/runs")
    ensure_instance(load_settings())
    file, former, here = own.dagster_home / "dagster.yaml", tmp_path / "före", str(own.home / "logs" / "dagster")
    moved = file.read_text().replace(here, str(former / "logs" / "dagster"))
    write_private(file, moved.replace("max_concurrent_runs: 4", "max_concurrent_runs: 9"))
    if made_again:
        (former / "logs" / "dagster" / "run").mkdir(parents=True)
    ensure_instance(load_settings())
    instance = yaml.safe_load(file.read_text())
    assert instance["compute_logs"]["config"]["base_dir"] == here
    assert instance["concurrency"]["runs"]["max_concurrent_runs"] == 9


@pytest.mark.parametrize("folder", ["logs/dagster", "big/logs/dagster", "dagster-logs", "nothing/there/yet"])
def test_logs_stay_where_somebody_has_put_them(own, monkeypatch, tmp_path, folder):
    monkeypatch.setenv("LAKEHOUSE_DAGSTER__STORAGE_URL", "postgresql://me:one@db.example/runs")
    ensure_instance(load_settings())
    (tmp_path / "big" / "other").mkdir(parents=True)
    file = own.dagster_home / "dagster.yaml"
    write_private(file, file.read_text().replace(str(own.home / "logs" / "dagster"), str(tmp_path / folder)))
    ensure_instance(load_settings())
    assert yaml.safe_load(file.read_text())["compute_logs"]["config"]["base_dir"] == str(tmp_path / folder)


def test_a_file_whose_url_cannot_be_renewed_is_named(own, monkeypatch):
    text = r'storage: {postgres: {postgres_url: "postgresql://me@h/\x61"}}'
    write_private(own.dagster_home / "dagster.yaml", text)
    monkeypatch.setenv("LAKEHOUSE_DAGSTER__STORAGE_URL", "postgresql://me@h/other")
    with pytest.raises(LakehouseError, match=r"dagster.yaml: its postgres_url is not that of"):
        ensure_instance(load_settings())


def test_upgrade_says_which_variable_of_dagsters_database_is_missing_and_where_it_is(own, monkeypatch):
    """In `ingestion` of docker/ it ended with `set the variable it names`."""
    monkeypatch.delenv("DAGSTER_POSTGRES_URL", raising=False)
    text = dagster_yaml("{env: DAGSTER_POSTGRES_URL}", Path("/logs"))
    write_private(own.dagster_home / "dagster.yaml", text)
    with pytest.raises(LakehouseError, match=r"DAGSTER_POSTGRES_URL is not set here\..* in `worker`"):
        outdated(own)


def test_a_passphrase_that_dagster_would_show_is_refused_without_it(own, monkeypatch):
    url = "postgresql://me:secret@h/d?sslkey=/k.pem&sslpassword=p4ssphrase"
    monkeypatch.setenv("LAKEHOUSE_DAGSTER__STORAGE_URL", url)
    with pytest.raises(LakehouseError, match="has sslpassword, which Dagster would show") as refused:
        ensure_instance(load_settings())
    assert "p4ss" not in str(refused.value) and not (own.dagster_home / "dagster.yaml").exists()


def test_an_instance_file_without_a_password_is_not_touched(own, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "of-somebody")
    for text in ("", "storage: {postgres: {postgres_url: {env: URL}}}", "run_launcher: {module: x, class: Y}\n"):
        write_private(own.dagster_home / "dagster.yaml", text)
        ensure_instance(own)
        assert (own.dagster_home / "dagster.yaml").read_text() == text and not password_file(own).exists()


def test_another_password_that_libpq_would_take_is_named(own, monkeypatch):
    monkeypatch.setenv("LAKEHOUSE_DAGSTER__STORAGE_URL", "postgres://me:secret@db.example/runs")
    monkeypatch.setenv("PGPASSWORD", "of-somebody")
    with pytest.raises(LakehouseError, match="PGPASSWORD is set"):
        ensure_instance(load_settings())


@pytest.mark.parametrize(
    "url", ["postgresql://me:p4ss/w0rd@h:1/d", "mysql://me:p4ssw0rd@h/d", "host=h password=p4ssw0rd"]
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(own, monkeypatch, url):
    monkeypatch.setenv("LAKEHOUSE_DAGSTER__STORAGE_URL", url)
    with pytest.raises(LakehouseError, match="is not of the form") as caught:
        ensure_instance(load_settings())
    assert "p4ss" not in str(caught.value) and not password_file(own).exists()


def test_dagsters_database_is_asked_for_where_nothing_names_it(own):
    with pytest.raises(LakehouseError, match="set LAKEHOUSE_DAGSTER__STORAGE_URL"):
        ensure_instance(own)


def test_ingestion_gets_the_run_time_role_and_the_owner_is_kept_apart(own):
    values = endpoints(own.home, own.home / "access", own.home / "s3", PORTS, CREDENTIALS)["sources"]["retail"]
    assert values["url"].startswith("postgresql://lakehouse_ingest:")
    assert values["owner_url"].startswith("postgresql://app:")


def test_files_with_passwords_are_private(own):
    write_endpoints(own, own.home / "access", own.home / "s3", PORTS, CREDENTIALS)
    ensure_credentials(own.home / "run" / "credentials.json")
    for name in ("endpoints.toml", "dagster/dagster.yaml", "run/credentials.json"):
        assert mode(own.home / name) == 0o600


def test_folders_that_an_earlier_release_left_open_are_closed(own):
    for name in ("run", "logs", "dagster", "dbt", "erasures"):
        (own.home / name).mkdir(parents=True, exist_ok=True)
        (own.home / name).chmod(0o755)
    with locked_home(own):
        assert {mode(own.home / name) for name in ("run", "logs", "dagster", "dbt", "erasures")} == {0o700}


def test_a_private_file_is_private_from_its_first_byte_even_when_it_replaces_an_open_one(tmp_path):
    target = tmp_path / "secret"
    target.write_text("old")
    target.chmod(0o644)
    write_private(target, "new")
    assert target.read_text() == "new"
    assert mode(target) == 0o600


def test_a_home_may_have_any_letters_in_its_path():
    """S3Proxy and Trino read their files byte by byte, and looked for `/home/rÃ©my`."""
    home = Path("/home/rémy \\ 🦆")
    files = trino_files(
        etc=home / "etc", certificate=home / "pem", access=home / "access", port=1, heap_mb=2048, host="127.0.0.1",
        catalog_jdbc="jdbc:postgresql://h/lake", s3_endpoint="http://s3", plugin_dir=home / "plugin",
    )  # fmt: skip
    files["s3"] = render(
        "s3proxy.properties.j2", host="h", port=1, access_key="a", secret_key="s", basedir=home, buckets="b"
    )
    written = "".join(files.values())
    assert written.isascii() and written.count(r"/home/r\u00e9my \\ \ud83e\udd86") == 9


def test_a_private_file_may_be_written_by_several_at_once(tmp_path):
    """Threads, and containers that share a volume, have one pid."""
    target = tmp_path / "rules.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: write_private(target, text * 10_000), "abcdefgh" * 20))
    assert len(target.read_text()) == 10_000 and list(tmp_path.iterdir()) == [target]


def test_an_id_of_a_cluster_that_begins_with_a_hyphen_is_no_option_of_its_own(tmp_path, monkeypatch):
    """One first start in 64 failed: `argument --cluster-id/-t: expected one argument`."""
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID("f98c5118-6a81-4b01-8ce2-b494bbc2df16"))
    command = format_command(tmp_path / "java", tmp_path / "classes", tmp_path / "broker.properties")
    assert "--cluster-id=-YxRGGqBSwGM4rSUu8LfFg" in command


def test_toml_text_survives_a_round_trip():
    values = {"a": 'quote " and \\ and é', "b": {"n": 1, "c": {"on": True}}}
    assert tomllib.loads(to_toml(values)) == values


def test_credentials_are_generated_once_and_differ(tmp_path):
    first = ensure_credentials(tmp_path / "c.json")
    assert ensure_credentials(tmp_path / "c.json") == first
    assert len(set(first.values())) == len(NAMES)


def test_the_catalog_service_gets_what_its_user_has_set(tmp_path):
    """It inherits no variables: with a certificate, `env` said https, and it spoke http."""
    options = ServeSettings(certificate=tmp_path / "c.pem", key=tmp_path / "k.pem", secret="s" * 32, url="https://lake")
    placement = ServerPlacement(None, tmp_path / "data", tmp_path / "run", tmp_path)
    given = serve_server(tmp_path, placement, 1, tmp_path / "access", options, {}).launch.env
    assert given["LAKEHOUSE_SERVE__CERTIFICATE"] == str(tmp_path / "c.pem")
    assert given["LAKEHOUSE_SERVE__KEY"] == str(tmp_path / "k.pem")
    assert (given["LAKEHOUSE_SERVE__SECRET"], given["LAKEHOUSE_SERVE__URL"]) == ("s" * 32, "https://lake")
    assert given["LAKEHOUSE_SERVE__HOST"] == "127.0.0.1"


def test_our_own_servers_are_started_again_by_another_release(tmp_path, monkeypatch):
    """After an upgrade, `up` left the old release's catalog service running."""

    def fingerprints():
        placement = ServerPlacement(None, tmp_path / "data", tmp_path / "run", tmp_path)
        serve = serve_server(tmp_path, placement, 1, tmp_path / "access", ServeSettings(), {})
        return [server.launch.fingerprint() for server in (serve, reads_server(tmp_path, {}))]

    before = fingerprints()
    assert fingerprints() == before
    for module in (serving, reading):
        monkeypatch.setattr(module, "RELEASE", "release 9.9.9")
    assert not set(before) & set(fingerprints())


def test_fixed_ports_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("LAKEHOUSE_STACK_TRINO_PORT", "8080")
    assert StackSettings().fixed_ports() == {"trino": 8080}
    assert "trino" in SERVERS


def test_a_home_of_a_release_without_passwords_is_told_to_upgrade(own):
    from lakehouse_cli.machine.upgrade import _logins_planned

    assert _logins_planned(own) == []
    ensure_credentials(own.home / "run" / "credentials.json")
    write_private(own.home / "endpoints.toml", '[trino]\nhost = "127.0.0.1"\nport = 21004\n')
    (line,) = _logins_planned(own)
    assert line.startswith("trino: ") and "password over TLS" in line
    write_endpoints(own, own.home / "access", own.home / "s3", PORTS, CREDENTIALS)
    assert _logins_planned(own) == []
