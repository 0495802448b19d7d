"""The dbt project as two sets of assets: parsed and vault, partitioned by day of commit, and the marts."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_dbt import DbtCliInvocation, dbt_assets
from dagster_dbt.errors import DagsterDbtCliRuntimeError

from lakehouse.declarations.dbt.models import is_view
from orchestration.assets.after_checks import after_checks
from orchestration.assets.blocking_checks import check_keys, tell_tests_without_checks
from orchestration.assets.dbt_resource import Dbt, clean_up, environment, run_environment
from orchestration.assets.groups import groups_read, load_groups, selection, sources_of
from orchestration.assets.held_back import Loads, held_back, tell_held, tests_beside
from orchestration.assets.markdown import escape_markdown
from orchestration.assets.next_tables import (
    built_whole,
    late_tests,
    sound_tables,
    tests_reading,
    unsound_tables,
)
from orchestration.assets.translator import BUILT_WITH_MARTS, LakeTranslator, is_raw, layer, node_key
from orchestration.resources import Lake, TableKey
from orchestration.runs import tags
from orchestration.runs.dependencies import name_of
from orchestration.runs.examples import example_rows, found_by
from orchestration.runs.failures import FAILED, compiled_test, dbt_failure, failed_tables, statuses, table_name
from orchestration.runs.partitions import DayRange, backfill_days, daily_partitions
from orchestration.runs.processes.queries import end_abandoned_queries
from orchestration.runs.processes.workers import end_children
from orchestration.runs.state.load_state import pack_state, unpack_state

if TYPE_CHECKING:
    from lakehouse.catalog.open import SnapshotFact

Manifest = dict[str, Any]
VAULT_POOL, MARTS_POOL = "vault", "marts"
MARTS_MODELS = "marts_models"
IN_MARTS = f"tag:{BUILT_WITH_MARTS}"
CHECKS_ALONE = "failed_checks"
"""Of a failure that nothing but checks has made: these. The watch tells of them by their tables, and not of the run."""


def load_assets(manifest: Manifest, first_day: date) -> list[dg.AssetsDefinition]:
    """Parsed and vault, by group of sources that share tables, so that no group waits for another.

    The pool of a group admits one run: two runs that load the same hub would both add its new keys.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for unique_id, group in load_groups(manifest).items():
        groups[group].append(unique_id)
    return [
        _load_assets(manifest, first_day, group, members)
        for group, members in sorted(groups.items())
        if not manifest["nodes"].keys().isdisjoint(members)
    ]


def _load_assets(manifest: Manifest, first_day: date, group: str, members: Sequence[str]) -> dg.AssetsDefinition:
    @dbt_assets(
        manifest=manifest,
        name=f"load_models_{group}",
        select=selection(manifest, members),
        partitions_def=daily_partitions(first_day),
        backfill_policy=dg.BackfillPolicy.single_run(),
        dagster_dbt_translator=LakeTranslator(),
        pool=f"{VAULT_POOL}_{group}",
    )
    def load_models(context: dg.AssetExecutionContext, dbt: Dbt, lake: Lake) -> Iterator[Any]:
        yield from build(context, dbt, lake, manifest, group, backfill_days(context.run.tags))

    return load_models


def other_sources(manifest: Manifest) -> list[dg.AssetSpec]:
    """Sources that no job materializes (`meta`). As assets they have a page for maintenance's observations."""
    nodes = [node for node in manifest["sources"].values() if not is_raw(node)]
    return [
        dg.AssetSpec(node_key(node), description=escape_markdown(node["description"]), group_name=layer(node))
        for node in nodes
    ]


def marts_assets(manifest: Manifest, reads: Sequence[TableKey], loads: Loads) -> dg.AssetsDefinition:
    """The marts, unpartitioned: each run rebuilds them in full. `reads` are the tables they are built from, `loads` the
    jobs that these may wait for."""

    @dbt_assets(
        manifest=manifest,
        name=MARTS_MODELS,
        select=IN_MARTS,
        dagster_dbt_translator=LakeTranslator(),
        pool=MARTS_POOL,
    )
    def marts_models(context: dg.AssetExecutionContext, dbt: Dbt, lake: Lake) -> Iterator[Any]:
        seen = lake.newest_snapshots(reads) | lake.unpublished_snapshots(built_whole(manifest))
        tags.record_snapshots(context, seen)
        yield from build_next(context, dbt, lake, manifest, loads)

    return marts_models


def build_next(
    context: dg.AssetExecutionContext, dbt: Dbt, lake: Lake, manifest: Manifest, loads: Loads
) -> Iterator[Any]:
    """Builds the selected marts beside the ones that readers see, tests them there, and publishes those that passed.

    Marts of what the load that it waited for has left red or behind stay as they are. Tests that read marts through
    views are run once these are published, and refuse nothing.
    """
    results, selected = DbtResults(), context.selected_asset_keys
    wanted = [id for id, node in manifest["nodes"].items() if "alias" in node and node_key(node) in selected]
    groups = load_groups(manifest)
    sources = sources_of(manifest, groups)
    read = frozenset[str]().union(*groups_read(manifest, wanted, groups).values())
    with lake.writing({group: sources[group] for group in read}):
        held = held_back(context.instance, manifest, loads, wanted)
        tell_held(context, manifest, held)
        marts = [mart for mart in wanted if mart not in held]
        tests = tests_reading(manifest, marts)
        unable = _unable(lake, manifest, tests, marts)
        late = late_tests(manifest) & tests.keys() - unable
        beside = tests_beside(manifest, marts, held, late | unable)
        left_out = sorted(manifest["nodes"][id]["name"] for id in {*late, *unable, *held})
        with lake.next_tables(built_whole(manifest)) as sound:
            events = list(build_events(context, dbt, lake, manifest, None, results, left_out)) if marts else []
            if beside:
                events += events_of_tests(context, dbt, lake, manifest, beside, results, of_next=True)
            sound |= sound_tables(manifest, results.statuses)
        unsound = {".".join(table) for table in unsound_tables(manifest, results.statuses)}
        if late:
            events += events_of_tests(context, dbt, lake, manifest, late, results)
    red = {*unsound, *results.failed_tables}
    events = [event for event in events if not isinstance(event, dg.Output) or _name_of(event, manifest) not in red]
    yield from with_table_metadata(events, lake, manifest)
    finish(context, results, unsound, [table_name(manifest["nodes"][mart]) for mart in held])


def _unable(lake: Lake, manifest: Manifest, tests: Mapping[str, Collection[str]], marts: Collection[str]) -> set[str]:
    """Those of the tests that read something of dbt's beside these marts that does not exist."""
    read = {id: manifest["nodes"][id] for id in frozenset[str]().union(*tests.values()) & manifest["nodes"].keys()}
    others = {
        id: node for id, node in read.items() if node["config"]["materialized"] != "ephemeral" and id not in marts
    }
    missing = lake.never_loaded([(node["schema"], node["alias"]) for node in others.values()], ())
    gone = {id for id, node in others.items() if (node["schema"], node["alias"]) in missing}
    return {test for test, nodes in tests.items() if not gone.isdisjoint(nodes)}


def _name_of(event: dg.Output[Any], manifest: Manifest) -> str:
    return table_name(nodes_by_output(manifest)[event.output_name])


def build(
    context: dg.AssetExecutionContext, dbt: Dbt, lake: Lake, manifest: Manifest, group: str, days: DayRange | None
) -> Iterator[Any]:
    """Runs `dbt build` for the selected assets and adds row counts from Iceberg's metadata.

    A backfill first loads all new data. Otherwise the newest row it writes would become the table's watermark, and
    older rows of other days would be skipped. Tables whose new data failed to load are excluded from the backfill.
    """
    results, run_id = DbtResults(), context.run.run_id
    sources = sources_of(manifest, load_groups(manifest))[group]
    with lake.writing({group: sources}):  # until it is recorded what was left behind: marts may be built then
        context.instance.add_run_tags(run_id, {tags.BEGUN: tags.pack_begun(run_id, datetime.now(UTC))})
        events = build_events(context, dbt, lake, manifest, days, results)
        yield from with_table_metadata(events, lake, manifest)
        tell_tests_without_checks(context.instance, manifest, results.statuses)
        finish(context, results)


def build_events(
    context: dg.AssetExecutionContext,
    dbt: Dbt,
    lake: Lake,
    manifest: Manifest,
    days: DayRange | None,
    results: "DbtResults",
    left_out: Sequence[str] = (),
) -> Iterator[Any]:
    """The events of `dbt build`, without row counts and without the tests `left_out`; adds to `results`."""
    nodes = nodes_by_output(manifest)
    if days is not None:
        context.log.info(f"loading new data, then {days.first} to {days.last} again")
        with dbt_invocation(context, dbt, lake, manifest, ["run"], None, results) as invocation:
            invocation.wait()
    without = [f"{node['name']}+" for node in nodes.values() if table_name(node) in results.failed_tables]
    excluded = [*sorted(without), *left_out]
    command = ["build", *(["--exclude", " ".join(excluded)] if excluded else [])]  # dagster-dbt takes one value alone
    with dbt_invocation(context, dbt, lake, manifest, command, days, results) as invocation:
        yield from after_checks(
            (with_examples(event, lake, manifest, invocation.target_path) for event in invocation.stream()),
            context.selected_asset_check_keys,
            context.assets_def.asset_deps,
            lambda event: node_key(nodes[event.output_name]),
            was_killed=lambda: not statuses(invocation.target_path),
        )


def events_of_tests(
    context: dg.AssetExecutionContext,
    dbt: Dbt,
    lake: Lake,
    manifest: Manifest,
    tests: Collection[str],
    results: "DbtResults",
    of_next: bool = False,
) -> Iterator[Any]:
    """The results of these tests alone, of what readers see, or `of_next` of what they will; adds to `results`."""
    names = " ".join(sorted(manifest["nodes"][test]["name"] for test in tests))
    command = ["test", "--indirect-selection", "empty", "--select", names]
    with dbt_invocation(context, dbt, lake, manifest, command, None, results, of_next) as invocation:
        for event in invocation.stream():
            if not isinstance(event, dg.AssetCheckEvaluation):
                continue
            key = dg.AssetCheckKey(event.asset_key, event.check_name)
            if key in context.selected_asset_check_keys:
                found = dg.AssetCheckResult(
                    asset_key=key.asset_key,
                    check_name=key.name,
                    passed=event.passed,
                    severity=event.severity,
                    metadata=event.metadata,
                )
                yield with_examples(found, lake, manifest, invocation.target_path)


def with_examples(event: Any, lake: Lake, manifest: Manifest, target: Path) -> Any:
    """The event; that of a failed test with how much it finds, and rows of it."""
    if not isinstance(event, dg.AssetCheckResult) or event.passed:
        return event
    node = manifest["nodes"].get(str(event.metadata["unique_id"].value), {})
    sql, count = compiled_test(node, target), event.metadata.get("dagster_dbt/failed_row_count")
    nodes = {**manifest["sources"], **manifest["nodes"]}
    found = example_rows(lake.settings(), sql.read_text(), node, nodes) if sql else ""
    if isinstance(count, dg.IntMetadataValue) and count.value is not None:
        event = event._replace(description=found_by(node, count.value, found))
    return event._replace(metadata={**event.metadata, "examples": dg.MetadataValue.text(found)}) if found else event


def nodes_by_output(manifest: Manifest) -> dict[str, Mapping[str, Any]]:
    """The models by the name of their output."""
    return {node_key(node).to_python_identifier(): node for node in manifest["nodes"].values() if "alias" in node}


def with_table_metadata(events: Iterable[Any], lake: Lake, manifest: Manifest) -> Iterator[Any]:
    """The events, with row count and snapshot of each table that was built."""
    nodes = nodes_by_output(manifest)
    for event in events:
        if isinstance(event, dg.Output):
            yield event.with_metadata({**event.metadata, **table_metadata(lake, nodes[event.output_name])})
        else:
            yield event


def finish(
    context: dg.AssetExecutionContext,
    results: "DbtResults",
    unsound: Collection[str] = (),
    waiting: Collection[str] = (),
) -> None:
    """Records the tables that failed or are `unsound`, and those `waiting`; raises Failure if any failed."""
    record_load_state(context, {*results.failed_tables, *unsound}, waiting)
    if results.failures:
        message = "\n".join(failure.message for failure in results.failures)
        metadata: dict[str, Any] = {"dbt_log": results.failures[-1].log}
        if all(failure.checks for failure in results.failures):
            metadata[CHECKS_ALONE] = sorted(frozenset().union(*(failure.checks for failure in results.failures)))
        raise dg.Failure(message, metadata=metadata)


@dataclass(frozen=True)
class DbtFailure:
    """A failed dbt run: the message for people, and the tables that failed. Where nothing but tests has failed, and
    Dagster is told of each as a check of this run, `checks` are these, as `schema.table/name`."""

    message: str
    tables: frozenset[str]
    log: dg.MetadataValue
    checks: frozenset[str] = frozenset()


@dataclass
class DbtResults:
    """What the dbt runs of a step have given: their failures, and the status of each model and test by unique id."""

    failures: list[DbtFailure] = field(default_factory=list)
    statuses: dict[str, str] = field(default_factory=dict)

    @property
    def failed_tables(self) -> frozenset[str]:
        """The tables of all failures."""
        return frozenset().union(*(failure.tables for failure in self.failures))


@contextmanager
def dbt_invocation(
    context: dg.AssetExecutionContext,
    dbt: Dbt,
    lake: Lake,
    manifest: Manifest,
    command: list[str],
    days: DayRange | None,
    results: DbtResults,
    of_next: bool = False,
) -> Iterator[DbtCliInvocation]:
    """Runs dbt on the assets this run has selected, `test` on the tests that the command names; leaving the block ends
    all dbt processes of the run. Tests read what readers see, or `of_next` what is to be published.

    Adds to `results`. Raises Failure if no table of this run is to blame.
    """
    end_abandoned_queries(lake.settings(), context.instance, context.run.run_id)
    variables, tests_alone = run_environment(lake.settings(), days, context.run.run_id), command[0] == "test"
    if context.assets_def.op.name == MARTS_MODELS and (of_next or not tests_alone):
        # eager: a test that reads a mart which is held back runs, too
        variables |= {"LAKEHOUSE_NEXT": "1", "DBT_INDIRECT_SELECTION": "eager"}
    with environment(variables):
        if tests_alone:
            target = Path(variables["DBT_TARGET_PATH"]) / f"{MARTS_MODELS}-{context.run.run_id[:7]}-tests"
            translator = LakeTranslator()
            invocation = dbt.cli(command, manifest=manifest, dagster_dbt_translator=translator, target_path=target)
        else:
            invocation = dbt.cli(command, context=context)
    try:
        yield invocation
    except DagsterDbtCliRuntimeError as error:
        message = dbt_failure(invocation.target_path, manifest, str(error))
        log = dg.MetadataValue.path(str(invocation.target_path / "dbt.log"))
        selected = set() if tests_alone else set(map(name_of, context.selected_asset_keys))
        tables = failed_tables(invocation.target_path, manifest, selected)
        if tables is None or (selected and not tables & selected):
            raise dg.Failure(message, metadata={"dbt_log": log}) from None
        checks = _checks_alone(manifest, statuses(invocation.target_path), context.selected_asset_check_keys)
        results.failures.append(DbtFailure(message, tables, log, checks))
        results.statuses |= statuses(invocation.target_path)
        return
    finally:
        end_children(context.run.run_id)
    results.statuses |= statuses(invocation.target_path)
    clean_up(invocation.target_path)


def _checks_alone(
    manifest: Manifest, found: Mapping[str, str], selected: Collection[dg.AssetCheckKey]
) -> frozenset[str]:
    failed = [unique_id for unique_id, status in found.items() if status in FAILED]
    keys = check_keys(manifest, [unique_id for unique_id in failed if unique_id.startswith("test.")])
    if len(keys) < len(failed) or not all(key in selected for key in keys.values()):
        return frozenset()
    return frozenset(f"{'.'.join(key.asset_key.path)}/{key.name}" for key in keys.values())


def record_load_state(
    context: dg.AssetExecutionContext, failed: Collection[str], waiting: Collection[str] = ()
) -> None:
    """Tags the run with the tables that it failed to load, or left `waiting`. From then on others count as loaded."""
    run_id, selected = context.run.run_id, set(map(name_of, context.selected_asset_keys))
    left = unpack_state(tags.tag(context.run, tags.HELD)).after(
        run_id, selected, selected.intersection(failed).difference(waiting), datetime.now(UTC), waiting
    )
    behind = {tags.LEFT_BEHIND: ", ".join(sorted(left.tables))} if left.tables else {}
    context.instance.add_run_tags(run_id, {tags.HELD: pack_state(left), **behind})


def table_metadata(lake: Lake, node: Mapping[str, Any]) -> dict[str, Any]:
    """Row count and snapshot of the table just built, read from its snapshot summary."""
    if is_view(node):
        return {}
    table = (node["schema"], node["alias"])
    fact = lake.newest_snapshots([table]).get(table_name(node))
    return snapshot_metadata(fact) if fact else {"dagster/row_count": 0}


def snapshot_metadata(fact: "SnapshotFact") -> dict[str, Any]:
    """The metadata that the table's page plots. The id is text: JavaScript rounds 64-bit integers."""
    return {
        "dagster/row_count": fact.total_rows,
        "rows_added": fact.added_rows,
        "snapshot_id": dg.MetadataValue.text(str(fact.snapshot_id)),
        "snapshot_at": dg.MetadataValue.timestamp(fact.committed_at),
    }
