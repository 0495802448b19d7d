"""The messages of failed runs, and the jobs that the same command then skips."""

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.utils import make_new_run_id

from lakehouse.declarations.access.rules import RELATIONS, Relation
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.settings import load_settings
from orchestration.assets.after_checks import after_checks
from orchestration.assets.blocking_checks import check_keys
from orchestration.assets.dbt_assets import _checks_alone, with_examples
from orchestration.runs import tags
from orchestration.runs.dependencies import reason_to_skip
from orchestration.runs.examples import _is_open, found_by, shown
from orchestration.runs.failures import CONFLICT, database_message, dbt_failure, failed_tables
from orchestration.runs.state.history import read_history
from orchestration.runs.state.load_state import HeldTable, LoadState, pack_state
from orchestration.runs.subset import JobSubset, subset_without, waiting_for_others
from tests.unit.dbt_macros import macro

MANIFEST: dict[str, Any] = {
    "sources": {"source.l.raw_shop.sales": {"schema": "raw_shop", "name": "sales"}},
    "nodes": {
        "model.l.hub": {"schema": "vault", "alias": "hub_sale", "original_file_path": "models/vault/hub_sale.sql"},
        "test.l.sound": {
            "name": "raw_log_is_sound_shop_sales", "test_metadata": {"name": "raw_log_is_sound"},
            "depends_on": {"nodes": ["source.l.raw_shop.sales"]},
        },
        "test.l.unique": {
            "name": "unique_hub", "test_metadata": {"name": "unique"}, "attached_node": "model.l.hub",
            "column_name": "hk_sale",
        },
    },
}  # fmt: skip
TRINO = (
    "Database Error in model hub_sale (models/vault/hub_sale.sql)\n"
    "  TrinoUserError(type=USER_ERROR, name=COLUMN_NOT_FOUND, message=\"line 3:8: Column 'x' cannot be resolved\","
    " query_id=20261122_1_2_abc)\n  compiled code at target/run/hub_sale.sql"
)


def results(target: Path, *found: tuple[str, str, str | None, int | None]) -> None:
    keys = ("unique_id", "status", "message", "failures")
    target.mkdir(exist_ok=True)
    (target / "run_results.json").write_text(json.dumps({"results": [dict(zip(keys, f, strict=True)) for f in found]}))


def test_each_failed_model_and_test_has_its_line(tmp_path: Path) -> None:
    compiled = tmp_path / "compiled" / "unique_hub.sql"
    compiled.parent.mkdir()
    compiled.touch()
    results(
        tmp_path,
        ("model.l.hub", "error", TRINO, None),
        ("test.l.sound", "fail", "Got 1 result, configured to fail if != 0", 1),
        ("test.l.unique", "fail", "Got 7 results, configured to fail if != 0", 7),
        ("model.l.sat", "skipped", None, None),
        ("model.l.ref", "success", "OK", None),
    )
    assert dbt_failure(tmp_path, MANIFEST, "") == "\n".join(
        [
            "vault.hub_sale (dbt_project/models/vault/hub_sale.sql): line 3:8: Column 'x' cannot be resolved"
            " (COLUMN_NOT_FOUND, query 20261122_1_2_abc)",
            "test raw_log_is_sound of raw_shop.sales found 1 failing row",
            "test unique of vault.hub_sale.hk_sale found 7 failing values;"
            f' to see them: lakehouse sql --role writer "$(cat {compiled})"',
            f"dbt: 3 failed, 1 skipped as a result; full log: {tmp_path}/dbt.log",
        ]
    )


def test_the_command_that_shows_the_rows_can_be_pasted_whatever_the_projects_folder_is_called(tmp_path: Path) -> None:
    target = tmp_path / "Käse Laden's"
    (target / "compiled").mkdir(parents=True)
    (target / "compiled" / "unique_hub.sql").write_text("SELECT 1")
    results(target, ("model.l.hub", "success", None, None), ("test.l.unique", "fail", "Got 7 results", 7))
    command = dbt_failure(target, MANIFEST, "").splitlines()[0].partition("to see them: lakehouse ")[2]
    pasted = f'lakehouse() {{ printf "%s\\n" "$@"; }}; lakehouse {command}'
    said = subprocess.run(["bash", "-c", pasted], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["sql", "--role", "writer", "SELECT 1"]


def test_a_load_that_lost_to_another_says_so_and_what_to_do(tmp_path: Path) -> None:
    """Trino's words are a list of files. By hand, dbt says the same at its end."""
    conflict = (
        "Database Error in model hub_sale (models/vault/hub_sale.sql)\n"
        '  TrinoExternalError(type=EXTERNAL, name=ICEBERG_COMMIT_ERROR, message="Failed to commit the transaction'
        ' during write: Found conflicting files that can contain records matching true: [s3://warehouse/a.parquet]",'
        " query_id=20261122_1_2_abc)\n  compiled code at target/run/hub_sale.sql"
    )
    results(tmp_path, ("model.l.hub", "error", conflict, None))
    told = dbt_failure(tmp_path, MANIFEST, "").splitlines()[0]
    assert told == (
        f"vault.hub_sale (dbt_project/models/vault/hub_sale.sql): {CONFLICT} (ICEBERG_COMMIT_ERROR, query"
        " 20261122_1_2_abc)"
    )
    said: list[str] = []
    node = SimpleNamespace(schema="vault", alias="hub_sale")
    ended = [SimpleNamespace(message=conflict, node=node), SimpleNamespace(message="OK", node=node)]
    macro("tell_conflicts", log=lambda text, info: said.append(text))(ended)
    assert said == [f"vault.hub_sale: {CONFLICT}"]


def test_examples_identify_rows_and_say_nothing_about_anybody() -> None:
    """What Dagster keeps, an erasure does not reach."""
    names = ("hk_person", "email", "source_seq", "_commit_lsn", "name")
    rows = [("00ab", "a@b.example", "1.2", 7, "Ann"), ("00cd", None, "1.3", 8, "Bob")]
    told = "hk_person=00ab, source_seq=1.2, _commit_lsn=7; hk_person=00cd, source_seq=1.3, _commit_lsn=8"
    assert shown(names, rows, None) == told
    assert shown(("unique_field", "n_records"), [("00ab", 2)], "hk_person") == "hk_person=00ab in 2 rows"
    assert shown(("unique_field",), [("a@b.example",)], "email") == ""
    assert shown(("name",), [("Ann",)], None) == shown((), [], None) == ""


def test_a_value_that_is_not_accepted_is_told_with_its_rows_where_any_reader_may_see_it(tmp_path: Path) -> None:
    """Whoever looked was told "1 row" and "n_records=3" of a value that was in three rows."""
    personal = frozenset({"e_mail"})
    made = [Relation("marts", "orders", "reader", personal)._asdict(), Relation("vault", "sat", "privacy")._asdict()]
    (tmp_path / RELATIONS).write_text(json.dumps({"relations": [{**r, "personal": [*r["personal"]]} for r in made]}))
    settings = load_settings(trino={"access": tmp_path})
    nodes = {name: {"schema": name, "alias": alias} for name, alias in (("marts", "orders"), ("vault", "sat"))}

    def test_of(node: str, column: str, kind: str = "accepted_values") -> dict[str, Any]:
        return {"test_metadata": {"name": kind}, "attached_node": node, "column_name": column}

    status = test_of("marts", "status")
    names, rows = ("value_field", "n_records"), [("lo'st", 3), ("x" * 99, 1)]
    told = shown(names, rows, "status", is_open=True)
    assert told == f"status='lo''st' in 3 rows; status='{'x' * 59}…' in 1 row"
    assert found_by(status, 2, told) == f"2 values: {told}" and found_by({}, 1, "hk_x=00ab") == "1 row"
    assert found_by({"config": {"fail_calc": "max(n)"}}, 7, "") == "max(n) is 7"
    assert shown(names, rows, "status") == "a value of status in 3 rows; a value of status in 1 row"
    assert _is_open(settings, status, nodes) and not _is_open(load_settings(), status, nodes)
    for hidden in (test_of("marts", "E_Mail"), test_of("vault", "status"), test_of("raw", "status")):
        assert not _is_open(settings, hidden, nodes)
    (tmp_path / RELATIONS).write_text("{")
    assert not _is_open(settings, status, nodes), "nobody knows"


def test_a_run_tells_how_much_its_failed_test_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alert of a run's check named it, and nothing else."""
    (tmp_path / "unique_hub.sql").touch()
    monkeypatch.setattr("orchestration.assets.dbt_assets.example_rows", lambda *_: "hk_sale=00ab in 2 rows")
    metadata = {"unique_id": "test.l.unique", "dagster_dbt/failed_row_count": 7}
    check = dg.AssetCheckResult(passed=False, asset_key=["vault", "hub_sale"], check_name="unique", metadata=metadata)
    lake: Any = SimpleNamespace(settings=lambda: None)
    found = with_examples(check, lake, MANIFEST, tmp_path)
    assert found.description == "7 values" and found.metadata["examples"].value == "hk_sale=00ab in 2 rows"


def test_a_run_that_nothing_but_its_checks_has_refused_names_them(home: Path) -> None:
    """Else it is told beside them; so it is with what Dagster is not told as a check of the run."""
    manifest = load_manifest(load_settings(home=home))
    tests = [key for key, node in manifest["nodes"].items() if node["resource_type"] == "test"]
    keys = check_keys(manifest, tests)
    one, other = list(keys)[:2]
    named = {test: f"{'.'.join(key.asset_key.path)}/{key.name}" for test, key in keys.items()}
    refused, every = {one: "fail", other: "error", "model.x": "success"}, list(keys.values())
    assert _checks_alone(manifest, refused, every) == {named[one], named[other]}
    for found, selected in (
        ({**refused, "model.x": "error"}, every),
        ({**refused, "unit_test.x": "fail"}, every),
        (refused, [keys[one]]),
        ({one: "pass"}, every),
    ):
        assert _checks_alone(manifest, found, selected) == frozenset()


def test_a_trino_that_starts_is_said_to_start() -> None:
    """Whoever was told that Trino had been killed got a stack trace of Java."""
    text = "error 500: b'java.lang.IllegalStateException: authenticators were not loaded\\n\\tat com.google.common'"
    assert "Trino does not answer (it is starting)" in database_message(text)


@pytest.mark.parametrize(
    ("name", "said", "told"),
    [
        ("INVALID_CAST_ARGUMENT", "Cannot cast 'ada@example.org' to BIGINT", "Cannot cast … to BIGINT"),
        ("INVALID_CAST_ARGUMENT", "Cannot cast 'o'Hara' to DECIMAL(4, 3)", "Cannot cast … to DECIMAL(4, 3)"),
        ("INVALID_CAST_ARGUMENT", "Value cannot be cast to date: 4711 Ada", "Value cannot be cast to date…"),
        ("INVALID_FUNCTION_ARGUMENT", 'Invalid format: "Ada" is malformed', "Invalid format: … is malformed"),
        ("NUMERIC_VALUE_OUT_OF_RANGE", "integer addition overflow: 4711 + 1", "integer addition overflow…"),
        ("COLUMN_NOT_FOUND", "line 3:8: Column 'ada' cannot be resolved", "line 3:8: Column 'ada' cannot be resolved"),
        ("INVALID_FUNCTION_ARGUMENT", "line 1:8: 'ada' is no zone", "line 1:8: 'ada' is no zone"),
    ],
)  # fmt: skip
def test_no_value_of_a_row_is_in_what_dagster_keeps_of_a_failure(name: str, said: str, told: str) -> None:
    """A text that could not be cast was in the event log, which no erasure reaches. Names of columns stay."""
    error = f'TrinoUserError(type=USER_ERROR, name={name}, message="{said}", query_id=q1)'
    assert database_message(f"Database Error in model a (a.sql)\n  {error}\n") == f"{told} ({name}, query q1)"


def test_the_vaults_own_tests_show_what_is_wrong_and_the_hash_of_such_a_key() -> None:
    """A hub that had a key twice said "2 rows", and not which."""
    sql, key = "select 'hash key twice' as problem, hk_store as example", "ab" * 16
    assert shown(("problem", "example"), [("hash key twice", key)], None, sql) == (
        f"problem=hash key twice, example={key}"
    )
    assert shown(("problem", "example"), [("Ann", "a@b.example")], None, sql) == "", "a test of somebody's may say so"


def test_many_failures_are_counted_rather_than_listed(tmp_path: Path) -> None:
    results(tmp_path, *((f"model.l.m{n}", "error", "no", None) for n in range(9)))
    lines = dbt_failure(tmp_path, MANIFEST, "").splitlines()
    assert len(lines) == 7 and lines[-2] == "and 4 more" and lines[-1].startswith("dbt: 9 failed")


def test_a_dbt_that_came_to_no_results_is_told_in_its_own_words(tmp_path: Path) -> None:
    told = dbt_failure(
        tmp_path, MANIFEST, "The dbt CLI process\n\nCompilation Error in model a (a.sql)\n  no ref 'b'\n"
    )
    assert told.startswith("dbt failed: Compilation Error in model a (a.sql): no ref 'b'; full log: ")
    assert (
        database_message(None) == "no message"
        and database_message("Database Error in model a (a.sql)\n  gone\n") == "gone"
    )


LOST = (
    "failed to fetch: HTTPSConnectionPool(host='127.0.0.1', port=27808): Max retries exceeded with url: /v1/statement"
    "/executing/1_2_3/y8/0 (Caused by NewConnectionError(\"HTTPSConnection(host='127.0.0.1', port=27808): Failed to"
    ' establish a new connection: [Errno 111] Connection refused"))'
)
BROKEN = (
    "failed to execute: ('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))"
)
REMEDY = "check LAKEHOUSE_TRINO__HOST and …__PORT, or run `lakehouse up` where the embedded stack serves it"
DBT_RAN = """The dbt CLI process with command

`dbt build --select x`

failed with exit code `{status}`. Check the stdout for the full information, or view the log: /t/dbt.log.{errors}"""


def test_a_trino_that_is_lost_in_the_middle_of_dbt_is_named_with_what_to_do(tmp_path: Path) -> None:
    """Killed during a hook, of which dbt keeps no result, it was "The dbt CLI process with command"."""
    refused = f"Trino at 127.0.0.1:27808 does not answer (Connection refused): {REMEDY}"
    errors = f"\n\nErrors parsed from dbt logs:\n\nEncountered an error:\nDatabase Error\n  {LOST}"
    told = dbt_failure(tmp_path, MANIFEST, DBT_RAN.format(status=2, errors=errors))
    assert told == f"dbt failed: {refused}; full log: {tmp_path}/dbt.log"
    results(tmp_path, ("model.l.hub", "error", f"Database Error in model hub_sale (m.sql)\n  {LOST}", None))
    assert dbt_failure(tmp_path, MANIFEST, "").splitlines()[0].endswith(f"hub_sale.sql): {refused}")
    without = f"Trino does not answer (Remote end closed connection without response): {REMEDY}"
    assert database_message(f"Database Error in model hub_sale (m.sql)\n  {BROKEN}") == without


def test_a_dbt_that_was_killed_or_met_an_error_of_its_own_is_told_so(tmp_path: Path) -> None:
    told = dbt_failure(tmp_path, MANIFEST, DBT_RAN.format(status=-9, errors=""))
    assert told == f"dbt failed: dbt ended with status -9; full log: {tmp_path}/dbt.log"
    errors = "\n\nErrors parsed from dbt logs:\n\nEncountered an error:\n[Errno 28] No space left on device: '/t/x'"
    told = dbt_failure(tmp_path, MANIFEST, DBT_RAN.format(status=2, errors=errors))
    assert told == f"dbt failed: [Errno 28] No space left on device: '/t/x'; full log: {tmp_path}/dbt.log"


def asset(key: list[str], *deps: list[str]) -> dg.AssetsDefinition:
    @dg.asset(key=key, deps=list(deps))
    def made() -> None: ...

    return made


@pytest.fixture(scope="module")
def defs() -> dg.Definitions:
    """Two loads that share a hub, marts of one and of both, and a job without tables."""

    @dg.op
    def tidy() -> None: ...

    @dg.job
    def compact() -> None:
        tidy()

    a, b = ["raw_a", "t"], ["raw_b", "t"]
    assets = [
        asset(a), asset(b), asset(["parsed", "a"], a), asset(["parsed", "b"], b),
        asset(["vault", "hub"], ["parsed", "a"], ["parsed", "b"]),
        asset(["marts", "of_a"], ["parsed", "a"]), asset(["marts", "of_marts"], ["marts", "of_a"]),
    ]  # fmt: skip
    loads = {name: dg.AssetSelection.assets(dg.AssetKey(raw)).downstream() for name, raw in (("a", a), ("b", b))}
    marts = dg.AssetSelection.key_prefixes(["marts"])
    jobs = [dg.define_asset_job(f"load_{name}", selection - marts) for name, selection in loads.items()]
    jobs += [dg.define_asset_job(name, dg.AssetSelection.assets(["marts", name])) for name in ("of_a", "of_marts")]
    return dg.Definitions(assets=assets, jobs=[*jobs, compact])


@pytest.mark.parametrize(
    ("job", "failed", "reason"),
    [
        ("of_a", ["load_a"], "it reads parsed.a and 1 more of load_a, which has not succeeded"),
        ("of_a", ["load_b"], None),
        ("of_marts", ["load_a"], "it reads parsed.a and 1 more of load_a, which has not succeeded"),
        ("of_marts", ["load_b", "of_a"], "it reads marts.of_a of of_a, which has not succeeded"),
        ("load_b", ["load_a"], None),
        ("load_a", ["load_a"], None),
        ("compact", ["load_a", "of_a"], None),
        ("of_a", ["compact"], None),
        ("of_a", [], None),
    ],
)
def test_what_reads_the_tables_of_a_failed_job_is_skipped_and_all_else_goes_on(
    defs: dg.Definitions, job: str, failed: list[str], reason: str | None
) -> None:
    jobs = {name: defs.resolve_job_def(name) for name in {job, *failed}}
    graph = defs.resolve_asset_graph()
    assert reason_to_skip(graph, jobs[job], [jobs[name] for name in failed]) == reason


SHOP: dict[str, Any] = {
    "sources": {"source.l.shop.sales": {}},
    "nodes": {
        "model.l.parsed": {
            "schema": "parsed", "alias": "sales", "resource_type": "model",
            "depends_on": {"nodes": ["source.l.shop.sales"]},
        },
        "model.l.hub": {"schema": "vault", "alias": "hub", "resource_type": "model", "depends_on": {"nodes": []}},
        "test.l.raw": {
            "schema": "x", "alias": "y", "resource_type": "test", "depends_on": {"nodes": ["source.l.shop.sales"]},
        },
        "test.l.hub": {
            "schema": "x", "alias": "z", "resource_type": "test", "attached_node": "model.l.hub",
            "depends_on": {"nodes": ["model.l.hub", "model.l.parsed"]},
        },
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("failed", "tables"),
    [
        (["model.l.parsed"], {"parsed.sales"}),
        (["test.l.hub"], {"vault.hub"}),
        (["test.l.raw", "test.l.hub"], {"parsed.sales", "vault.hub"}),
        (["operation.l.on_run_start", "model.l.parsed"], None),
        ([], None),
    ],
)
def test_what_failed_is_known_by_its_tables(tmp_path: Path, failed: list[str], tables: set[str] | None) -> None:
    """A test counts against the table it is attached to, one of a source table against the models that read it."""
    results(tmp_path, *((node, "error", "no", None) for node in failed), ("model.l.other", "success", "OK", None))
    assert failed_tables(tmp_path, SHOP, ()) == tables


def test_a_test_that_is_attached_to_a_table_beside_the_selected_ones_counts_against_those_it_reads(
    tmp_path: Path,
) -> None:
    """A mart is tested with one that is held back: the whole run failed, as if no table of its own were to blame."""
    results(tmp_path, ("test.l.hub", "error", "no", None), ("model.l.parsed", "success", "OK", None))
    assert failed_tables(tmp_path, SHOP, {"parsed.sales"}) == {"parsed.sales"}
    assert failed_tables(tmp_path, SHOP, {"vault.other"}) == {"vault.hub"}


def test_what_dbt_did_not_come_to_has_failed(tmp_path: Path) -> None:
    """An interrupted dbt has no results for the remaining models."""
    results(tmp_path, ("model.l.parsed", "success", "OK", None))
    assert failed_tables(tmp_path, SHOP, {"parsed.sales", "vault.hub"}) == {"vault.hub"}
    (tmp_path / "run_results.json").unlink()
    assert failed_tables(tmp_path, SHOP, {"parsed.sales", "vault.hub"}) is None


def test_a_table_counts_as_materialized_once_its_checks_have_passed() -> None:
    good, bad, unchecked, child = (dg.AssetKey([name]) for name in ("good", "bad", "unchecked", "child"))

    def check(key: dg.AssetKey, name: str, passed: bool = True, warns: bool = False) -> dg.AssetCheckResult:
        severity = dg.AssetCheckSeverity.WARN if warns else dg.AssetCheckSeverity.ERROR
        return dg.AssetCheckResult(asset_key=key, check_name=name, passed=passed, severity=severity)

    def output(key: dg.AssetKey) -> dg.Output[None]:
        return dg.Output(None, output_name=key.path[0])

    checks = [dg.AssetCheckKey(good, "a"), dg.AssetCheckKey(good, "b"), dg.AssetCheckKey(bad, "a")]
    parents: dict[dg.AssetKey, set[dg.AssetKey]] = {good: set(), bad: set(), unchecked: set(), child: {good}}
    events = [
        output(good), output(unchecked), output(child), output(bad), check(good, "a", passed=False, warns=True),
        check(bad, "a", passed=False), check(good, "b"),
    ]  # fmt: skip
    told = [
        event.output_name if isinstance(event, dg.Output) else f"{event.asset_key.path[0]}'s {event.check_name}"
        for event in after_checks(events, checks, parents, lambda event: dg.AssetKey(event.output_name))
    ]
    assert told == ["unchecked", "bad's a", "good", "good's a", "good's b", "child"], "no table before its parents"


def test_where_dbt_fails_what_has_no_more_checks_to_come_is_materialized() -> None:
    key = dg.AssetKey(["good"])

    def events() -> Any:
        yield dg.Output(None, output_name="good")
        raise ValueError

    came = []
    with pytest.raises(ValueError):
        for event in after_checks(events(), [dg.AssetCheckKey(key, "a")], {key: set()}, lambda event: key):
            came.append(event)
    assert len(came) == 1


def test_where_dbt_was_killed_what_was_not_tested_is_not_materialized() -> None:
    """Tables were told as materialized whose tests had never run, and nothing ran them until rows came."""
    untested, tested = dg.AssetKey(["untested"]), dg.AssetKey(["tested"])

    def events() -> Any:
        yield dg.Output(None, output_name="untested")
        yield dg.Output(None, output_name="tested")
        raise ValueError

    came = []
    parents = {untested: set[dg.AssetKey](), tested: {untested}}
    checks = [dg.AssetCheckKey(untested, "a")]
    with pytest.raises(ValueError):
        for event in after_checks(
            events(), checks, parents, lambda event: dg.AssetKey(event.output_name), lambda: True
        ):
            came.append(event.output_name)
    assert came == ["tested"]


def ran(
    instance: dg.DagsterInstance, job: dg.JobDefinition, held: dict[str, int], only: list[list[str]] | None = None
) -> str:
    """Adds a finished run of the job whose load state has these tables and failures; returns its id."""
    run_id = make_new_run_id()
    state = LoadState(run_id, None, {name: HeldTable(tries, datetime.now(UTC), None) for name, tries in held.items()})
    status = dg.DagsterRunStatus.FAILURE if held else dg.DagsterRunStatus.SUCCESS
    selection = frozenset(map(dg.AssetKey, only)) if only else None
    instance.add_run(
        dg.DagsterRun(job.name, run_id, status=status, tags={tags.HELD: pack_state(state)}, asset_selection=selection)
    )
    return run_id


def test_marts_wait_for_what_another_job_holds_back_and_loads_for_nothing(defs: dg.Definitions) -> None:
    repository = defs.get_repository_def()
    load_a, of_a, load_b = (repository.get_job(name) for name in ("load_a", "of_a", "load_b"))
    with dg.DagsterInstance.ephemeral() as instance:
        assert waiting_for_others(instance, repository, of_a) == {}
        ran(instance, load_a, {"vault.hub": 1})
        assert waiting_for_others(instance, repository, of_a) == {}, "it does not read the hub"
        ran(instance, load_a, {"parsed.a": 2})
        why = "parsed.a has failed 2 times in load_a"
        assert waiting_for_others(instance, repository, of_a) == {"marts.of_a": why}
        assert waiting_for_others(instance, repository, load_b) == {}
        ran(instance, load_a, {})
        assert waiting_for_others(instance, repository, of_a) == {}


def test_marts_wait_for_a_load_that_was_killed(defs: dg.Definitions) -> None:
    """It has told nothing: they were built of the tables that it had come to, and of older rows of the others."""
    repository, run_id = defs.get_repository_def(), make_new_run_id()
    load_a, of_a = (repository.get_job(name) for name in ("load_a", "of_a"))
    begun = {tags.BEGUN: tags.pack_begun(run_id, datetime.now(UTC))}
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_run(dg.DagsterRun("load_a", run_id, status=dg.DagsterRunStatus.FAILURE, tags=begun))
        why = f"run {run_id[:8]} of load_a began to load it and has told no end"
        assert waiting_for_others(instance, repository, of_a) == {"marts.of_a": why}
        instance.add_run(dg.DagsterRun("load_a", make_new_run_id(), status=dg.DagsterRunStatus.FAILURE, tags=begun))
        assert waiting_for_others(instance, repository, of_a), "one that repeats it has its tags, and has begun nothing"
        ran(instance, load_a, {})
        assert waiting_for_others(instance, repository, of_a) == {}


def test_a_run_of_release_0_1_is_read_by_its_former_tags(defs: dg.Definitions) -> None:
    """Tags that are not for people have Dagster's prefix now, with which the UI hides them."""
    job = defs.get_repository_def().get_job("load_a")
    with dg.DagsterInstance.ephemeral() as instance:
        run_id = ran(instance, job, {"vault.hub": 1})
        run = instance.get_run_by_id(run_id)
        assert run is not None
        former = {tags.HELD: run.tags[tags.HELD], tags.SNAPSHOTS: '{"raw_a.t": "7"}', tags.CODE: "c", tags.TRIGGER: "t"}
        former = {name.replace(".dagster/lakehouse_", "lakehouse/"): value for name, value in former.items()}
        assert all(name.startswith("lakehouse/") for name in former)
        instance.delete_run(run_id)
        instance.add_run(dg.DagsterRun(job.name, run_id, status=dg.DagsterRunStatus.FAILURE, tags=former))
        load = read_history(instance, "load_a", job).last_load
        assert load is not None and (load.snapshots, load.code, load.trigger) == ({"raw_a.t": 7}, "c", "t")
        assert set(load.end_state.tables) == {"vault.hub"}


def test_a_run_is_a_load_if_it_held_back_what_it_left_out(defs: dg.Definitions) -> None:
    """Tables that are no longer part of the job are ignored."""
    job = defs.get_repository_def().get_job("load_a")
    with dg.DagsterInstance.ephemeral() as instance:
        without_hub = [["raw_a", "t"], ["parsed", "a"]]
        ran(instance, job, {"vault.gone": 1}, without_hub)
        assert read_history(instance, "load_a", job).last_load is None
        held_back = ran(instance, job, {"vault.hub": 1, "vault.gone": 1}, without_hub)
        load = read_history(instance, "load_a", job).last_load
        assert load is not None and load.run_id == held_back and set(load.end_state.tables) == {"vault.hub"}
        copied = {tags.HELD: pack_state(load.end_state)}
        instance.add_run(dg.DagsterRun("load_a", make_new_run_id(), status=dg.DagsterRunStatus.FAILURE, tags=copied))
        history = read_history(instance, "load_a", job)
        assert history.last_load == load and len(history.failures) == 1, "a run that is repeated has loaded nothing yet"


def test_a_part_of_a_job_has_the_checks_of_its_tables_alone(defs: dg.Definitions) -> None:
    job = defs.get_repository_def().get_job("load_a")
    assert subset_without(job, ()) == JobSubset()
    assert subset_without(job, {"vault.hub"}).assets == (dg.AssetKey(["parsed", "a"]), dg.AssetKey(["raw_a", "t"]))
