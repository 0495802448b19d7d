"""`lakehouse prepare` and `lakehouse ingest`."""

import signal
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakehouse.declarations import Declarations, Source, load_declarations, source_and_table
from lakehouse.declarations.dbt.changes import Changes, changes_of
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import console, say, say_json
from lakehouse_cli.logs import log_to_stderr
from lakehouse_cli.source.progress import shown

if TYPE_CHECKING:
    from ingestion.run.threads import Changed

Sources = Annotated[list[str] | None, typer.Argument(help="sources; default: all declared ones")]
Tables = list[str] | None
DONE = {"resume": "streams again", "resnapshot": "its snapshot is read"}
BY_OTHER = "by the writer at work"
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for machines")]


def _table_option(name: str, help: str) -> Any:
    return typer.Option(name, metavar="SOURCE.TABLE", help=help)


def prepare(
    sources: Sources = None,
    check: Annotated[
        bool, typer.Option("--check", help="change nothing, list what is wrong or still to do; exit 1 if something is")
    ] = False,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="take excluded columns from a role that may read them")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a source's publication and grants: run as the owner if its URL is known, otherwise printed.

    Refuses a table if publishing it would make the application's UPDATE and DELETE fail. In Kafka nothing is created.
    """
    from ingestion.sources.postgres.setup import Server, advice, may_copy_cluster, server_of
    from ingestion.sources.postgres.setup import prepare as prepare_source

    if as_json and not check:
        raise typer.BadParameter("--json needs --check")
    if revoke and check:
        raise typer.BadParameter("--check changes nothing: leave out --revoke")
    settings = load_settings()
    declarations = load_declarations(settings)
    if check:
        _check(settings, declarations, _chosen(settings, declarations, sources), as_json)
        return
    told = set[Server]()
    for name in _chosen(settings, declarations, sources):
        if (needs := _rights(settings, declarations.source(name))) is not None:
            say(f"-- source {name}: {needs}")
            continue
        statements, done = prepare_source(settings, declarations.source(name), revoke=revoke)
        say(f"-- source {name}: " + ("these were run as the owner" if done else "run these as the tables' owner"))
        for statement in statements:
            say(f"{statement};")
        if (server := server_of(settings, name)) not in told and may_copy_cluster(settings, name):
            told.add(server)
            say("-- " + ": ".join(advice(settings, name)))


def _rights(settings: Settings, source: Source) -> str | None:
    """What the login needs in Kafka, for people; None of a source that is elsewhere."""
    from ingestion.sources.debezium.check import rights as rights_of_debezium
    from ingestion.sources.kafka.check import rights

    if source.kind == "postgres":
        return None
    return rights(source) if source.kind == "kafka" else rights_of_debezium(settings, source)


def _check(settings: Settings, declarations: Declarations, names: list[str], as_json: bool) -> None:
    from ingestion.sources.kinds import check_source
    from ingestion.sources.postgres.setup import once

    found = list(
        once(settings, (f for name in names for f in check_source(settings, declarations.source(name))), set())
    )
    if as_json:
        say_json([finding.as_dict() for finding in found])
    else:
        for name in names:
            if (needs := _rights(settings, declarations.source(name))) is not None:
                say(f"-- source {name}: {needs}")
        for finding in found:
            say(f"{finding.weight:<11} {finding.line}")
        for name in [name for name in names if name not in {f.source for f in found if f.weight == "in the way"}]:
            is_due = any(finding.source == name and finding.weight == "prepare" for finding in found)
            rest = f"; `lakehouse prepare {name}` does what is still to do" if is_due else ""
            say(f"{name}: nothing is in the way{rest}")
    if any(finding.weight != "warning" for finding in found):
        raise typer.Exit(1)


def ingest(
    sources: Sources = None,
    once: Annotated[bool, typer.Option("--once", help="bring the sources up to date, then exit")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="ingest continuously until stopped")] = False,
    share: Annotated[
        bool, typer.Option("--share", help="with --follow: beside other followers, each with a part of the topics")
    ] = False,
    recover: Annotated[
        bool,
        typer.Option(
            "--recover",
            help="go on in the next epoch where a source was lost, restored or made again: tables are compared and "
            "resynced; topics are read on, and those that were created again from their beginning",
        ),
    ] = False,
    move: Annotated[
        bool, typer.Option("--move", help="go on with the kind of source that is declared now: a slot, or its topics")
    ] = False,
    pause: Annotated[Tables, _table_option("--pause", "keep a table's records in the spool from now on")] = None,
    resume: Annotated[Tables, _table_option("--resume", "land a parked or paused table's spool and continue")] = None,
    resnapshot: Annotated[Tables, _table_option("--resnapshot", "read a whole table again")] = None,
    replay: Annotated[Tables, _table_option("--replay", "try a table's dead letters again")] = None,
    remove: Annotated[Tables, _table_option("--remove", "forget a table that is no longer declared")] = None,
    as_json: AsJson = False,
) -> None:
    """Ingest committed changes into the raw layer; exits 1 if a table is parked."""
    on_tables = {"pause": pause, "resume": resume, "resnapshot": resnapshot, "replay": replay, "remove": remove}
    chosen = {name: tables for name, tables in on_tables.items() if tables}
    if once + follow + recover + move + len(chosen) != 1:
        raise typer.BadParameter("give one of --once, --follow, --recover, --move, --" + ", --".join(on_tables))
    if recover and not sources:
        raise typer.BadParameter("name the sources to --recover: each begins its next epoch")
    if move and not sources:
        raise typer.BadParameter("name the sources to --move: each begins its next epoch")
    if chosen and sources:
        raise typer.BadParameter(f"--{next(iter(chosen))} names its tables as SOURCE.TABLE: omit {sources[0]}")
    if share and not follow:
        raise typer.BadParameter("--share is for --follow: several followers of one source")
    if follow and as_json:
        raise typer.BadParameter("--follow logs until it is stopped: omit --json, or use `lakehouse status --json`")
    settings = load_settings()
    changes = changes_of(settings) if follow else None  # before what may change is read
    declarations = load_declarations(settings)
    for command, tables in chosen.items():
        _on_tables(settings, declarations, command, tables, as_json)
        return
    names = _chosen(settings, declarations, sources)
    if changes is not None:
        _follow(settings, declarations, names, share, partial(_changed, changes, sources, share))
    else:
        from ingestion import bring_up, move_source

        work = _recover if recover else move_source if move else partial(bring_up, only_changed=True)
        after = partial(_after_recovery, settings, declarations) if recover else None
        _each(settings, dict.fromkeys(names), partial(work, settings, declarations), as_json, after)


def _recover(settings: Settings, declarations: Declarations, name: str) -> Any:
    """Once its next epoch has begun, any later cycle finishes a recovery that failed, and none of them erases again."""
    from erasure.run import remembered
    from ingestion import recover_source

    try:
        return recover_source(settings, declarations, name)
    except LakehouseError as error:
        stones: Sequence[object] = ()
        with suppress(LakehouseError):
            stones = remembered(settings, name)
        if not stones:
            raise
        how = "nobody was erased again: once the source is up to date, run `lakehouse erase --repeat`"
        raise LakehouseError(f"{error}; {how}") from error


def _after_recovery(settings: Settings, declarations: Declarations, name: str) -> None:
    if declarations.source(name).mirrored:
        behind = "stay behind until a follower, or"
        say(f"{name}: mirrors and current views {behind} `lakehouse mirror {name}`, refreshes them", error=True)
    _erase_again(settings, declarations, name)


def _erase_again(settings: Settings, declarations: Declarations, name: str) -> None:
    """After a restore the lake, or the source, may be of a time before an erasure."""
    from erasure.run import remembered, repeat
    from lakehouse_serve.export import export_again

    if not (stones := remembered(settings, name)):
        return
    say(f"{name}: erasing again {len(stones)} subjects", error=True)
    done, problems = repeat(settings, declarations, load_manifest(settings), name, say=partial(say, error=True))
    if problem := export_again(settings):
        problems.append(problem)
    if left := [finding for erasure in done for finding in erasure.left]:
        problems.insert(0, f"{len(left)} objects still contain erased subjects, first {left[0].path}: {left[0].why}")
    if problems:
        raise LakehouseError("; ".join(problems))


def _on_tables(settings: Settings, declarations: Declarations, command: str, tables: list[str], as_json: bool) -> None:
    import ingestion

    if command == "remove":

        def forget(name: str) -> None:
            source, table = source_and_table(name)
            ingestion.forget(settings, source, table, {table.name for table in declarations.source(source).tables})

        _one_by_one(
            tables, forget, "forgotten", "its rows stay in the lake, and its publication may drop it now", as_json
        )
        return
    chosen = {name: declarations.named(name) for name in tables}  # all of them, before anything is done to one
    if command == "pause":
        kept = "its records are kept in the spool until --resume"
        _one_by_one(tables, lambda name: ingestion.pause(settings, chosen[name]), "paused", kept, as_json)
        return
    by_source: dict[str, list[str]] = {}
    for table in chosen.values():
        by_source.setdefault(table.source, []).append(table.name)
    bring = partial(getattr(ingestion, command), settings, declarations)
    _each(settings, by_source, bring, as_json, done=DONE.get(command, ""))


def _one_by_one(tables: list[str], act: Callable[[str], None], state: str, what_now: str, as_json: bool) -> None:
    for name in tables:
        act(name)
        if not as_json:
            say(f"{name}: {state}; {what_now}")
    if as_json:
        say_json([{"table": name, "state": state} for name in tables])


def _each(
    settings: Settings,
    work: Mapping[str, Any],
    bring: Callable[..., Any],
    as_json: bool,
    after: Callable[[str], None] | None = None,
    done: str = "",
) -> None:
    """Brings each source up to date and does what comes `after` it; raises at the end what went wrong.

    `done` says what has become of a table that was named, unless it is aside.
    """
    reports: list[dict[str, Any]] = []
    failures: list[LakehouseError] = []
    with shown(settings, console(error=True)) as show:
        for name, tables in work.items():
            try:
                with show(name):
                    reports.append(asdict(bring(name, tables) if tables else bring(name)))
                if after is not None:
                    after(name)
            except LakehouseError as error:
                failures.append(error)
    if as_json:
        say_json(reports)
    else:
        for report in reports:
            _print_report(report, work[report["source"]] if done else (), done)
    problems = [str(failure) for failure in failures]
    problems += [a["reason"] for report in reports for a in report["aside"] if a["state"] != "paused"]
    if problems:
        raise LakehouseError("; ".join(problems))


def _print_report(report: dict[str, Any], named: Collection[str], done: str) -> None:
    say(f"{report['source']}: cut {report['cut_position']} at {report['cut_at']:%Y-%m-%d %H:%M:%S %Z}")
    waited = report["seconds"] is None  # then nobody has counted what the other writer brought
    rest = f"up to date, {BY_OTHER}" if waited else "nothing new"
    aside = {table["name"] for table in report["aside"]}  # the newest cut may have one of them still
    for table in report["tables"]:
        rows = ", ".join(f"{op} {count:,}" for op, count in sorted(table["rows"].items()))
        if table["name"] in aside:
            rows = rows or "as of its last cut"
        elif table["name"] in named:
            rows = ": ".join(filter(None, (f"{done}, {BY_OTHER}" if waited else done, rows)))
        say(f"  {table['name']:<24} {table['total_rows']:>12,} rows   {rows or rest}")
    if (same := len(report["unchanged"])) and report["tables"]:
        say(f"  {f'{same:,} other tables':<24} {'':>12}        {rest}")
    elif same:
        say(f"  {same:,} tables: {rest}")
    for table in report["aside"]:
        say(f"  {table['name']:<24} {table['state']}")
    for name in sorted({*named} - aside - {table["name"] for table in report["tables"]}):
        say(f"  {name:<24} in no cut yet: `lakehouse status` says how far it is")


def _follow(settings: Settings, declarations: Declarations, names: list[str], share: bool, changed: "Changed") -> None:
    from ingestion import follow_sources

    log_to_stderr(settings)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    follow_sources(settings, declarations, names, stop, share=share, changed=changed)


def _changed(changes: Changes, sources: list[str] | None, share: bool) -> tuple[Settings, list[Source]] | None:
    """What a follower that started now would follow, if that may be another thing than the last time.

    Raises LakehouseError where it would be refused, or would not follow a source.
    """
    from ingestion.sources.kinds import check_kind, check_shared

    if not changes.settled():
        return None
    settings = load_settings()
    declarations = load_declarations(settings)
    chosen = [declarations.source(name) for name in _chosen(settings, declarations, sources)]
    for source in chosen:
        check_kind(settings, source)
        if share:
            check_shared(source)
    return settings, chosen


def _chosen(settings: Settings, declarations: Declarations, sources: list[str] | None) -> list[str]:
    names = [declarations.source(name).name for name in sources] if sources else [s.name for s in declarations.sources]
    for name in names:
        settings.connection(name)
    if not names:
        raise LakehouseError("no source is declared: add one in dbt_project/models/sources/")
    return names
