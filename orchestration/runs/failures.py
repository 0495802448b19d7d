"""Failure messages: the model or test that failed, the database's message, and a command to investigate."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import dagster as dg
from dagster_shared.error import SerializableErrorInfo

from lakehouse.servers.trino import lost_connection
from lakehouse.text.shown import shortened, visible
from orchestration.runs.examples import finds

SHOWN = 5
LONGEST = 500
OWN_ERROR = re.compile(r"^(lakehouse(_\w+)?|ingestion|maintenance|erasure)\.[\w.]+: ")
CONFLICT = (  # as the macro `conflict_text` says it to who runs dbt by hand
    "another load added rows to the table while this one ran, so this one added none to it:"
    " wait until the other has ended, then run this again"
)
DBT_ERROR = re.compile(r"\w+ Error( in |$)|Failure in test ")
AROUND_IT = re.compile(  # what Dagster and dbt say before the error
    r"(\S+: )?The dbt CLI process with command$|`.*`$|failed with exit code |Errors parsed from dbt logs:$"
    r"|Encountered an error:$"
)
FAILED = ("error", "fail", "runtime error")
OF_VALUES = {  # Trino's names of errors whose messages cite a cell
    "INVALID_CAST_ARGUMENT", "INVALID_FUNCTION_ARGUMENT", "INVALID_LITERAL", "JSON_INPUT_CONVERSION_ERROR",
    "JSON_OUTPUT_CONVERSION_ERROR", "JSON_VALUE_RESULT_ERROR", "NUMERIC_VALUE_OUT_OF_RANGE", "PATH_EVALUATION_ERROR",
}  # fmt: skip
OF_THE_TEXT = re.compile(r"line \d+:\d+: ")  # an error that was found in the statement, before any row was read
QUOTED = re.compile(r"""'.*'|".*\"""")


def failure_message(event: dg.DagsterEvent) -> str | None:
    """The message of a failure event; None for other events, and for a run failure that only names its steps."""
    if not event.is_failure or event.event_specific_data is None:
        return None
    described = getattr(getattr(event.event_specific_data, "user_failure_data", None), "description", None)
    error = getattr(event.event_specific_data, "error", None)
    return described or (root_cause(error) if error else None)


def root_cause(error: SerializableErrorInfo) -> str:
    """The root cause of an error on one line; our own errors without their class name."""
    while error.cause is not None:
        error = error.cause
    if error.cls_name in ("KeyboardInterrupt", dg.DagsterExecutionInterruptedError.__name__):
        return "interrupted"
    return one_line(OWN_ERROR.sub("", error.message))


def one_line(message: str) -> str:
    """The message on one line; of dbt's output, the first error."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    named = next((i for i, line in enumerate(lines) if DBT_ERROR.match(line)), None)
    if named is not None:
        return shortened(visible(": ".join(lines[named : named + 2])), LONGEST)
    told = [line for line in lines if not AROUND_IT.match(line)]
    if not told and (status := re.search(r"^failed with exit code `(-?\d+)`", message, re.MULTILINE)):
        told = [f"dbt ended with status {status[1]}"]
    return shortened(visible((told or lines or ["no message"])[0]), LONGEST)


def statuses(target: Path) -> dict[str, str]:
    """The status of each model and test of a dbt run, by unique id."""
    return {result["unique_id"]: result["status"] for result in _results(target)}


def _results(target: Path) -> list[dict[str, Any]]:
    file = target / "run_results.json"
    return list(json.loads(file.read_text())["results"]) if file.exists() else []


def dbt_failure(target: Path, manifest: Mapping[str, Any], fallback: str) -> str:
    """The failures of a dbt run, one line per model or test, then how many; `fallback` is dbt's own message.

    Lists show the first line alone: it is a cause.
    """
    results = _results(target)
    failed = [result for result in results if result["status"] in FAILED]
    if not failed:  # the project does not compile, Trino was lost before the first model, or dbt was killed
        told = one_line(fallback)
        told = lost_connection(told.removeprefix("Database Error: ")) or told
        return f"dbt failed: {told}; full log: {target / 'dbt.log'}"
    skipped = sum(result["status"] == "skipped" for result in results)
    return "\n".join(_lines(failed, skipped, manifest, target))


def failed_tables(target: Path, manifest: Mapping[str, Any], selected: Collection[str]) -> frozenset[str] | None:
    """The tables (`schema.table`) that failed to build or failed a test; None if something else failed.

    A failed test of a source table counts against the models that read it. Selected models that dbt did not reach count
    as failed.
    """
    results = _results(target)
    failed = [result["unique_id"] for result in results if result["status"] in FAILED]
    blamed = [_blamed(manifest["nodes"].get(unique_id), manifest, selected) for unique_id in failed]
    if not results or not all(blamed):
        return None
    reached = {result["unique_id"] for result in results}
    missed = frozenset(table_name(node) for unique_id, node in _built(manifest) if unique_id not in reached)
    return missed.intersection(selected).union(*blamed) or None


def _blamed(node: Mapping[str, Any] | None, manifest: Mapping[str, Any], selected: Collection[str]) -> frozenset[str]:
    """The tables behind a failure; of a test that is attached to a table beside the selected ones, those it reads."""
    found = _tables_behind(node, manifest)
    if found.isdisjoint(selected) and node is not None and node.get("resource_type") == "test":
        read = (_tables_of(unique_id, manifest) for unique_id in node.get("depends_on", {}).get("nodes", ()))
        return frozenset().union(*read).intersection(selected) or found
    return found


def _built(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for unique_id, node in manifest["nodes"].items():
        if node.get("resource_type") == "model" and node.get("config", {}).get("materialized") != "ephemeral":
            yield unique_id, node


def table_name(node: Mapping[str, Any]) -> str:
    """`schema.table`."""
    return f"{node['schema']}.{node['alias']}"


def _tables_behind(node: Mapping[str, Any] | None, manifest: Mapping[str, Any]) -> frozenset[str]:
    if node is None:
        return frozenset()
    if "alias" in node and node.get("resource_type") != "test":
        return frozenset([table_name(node)])
    attached = node.get("attached_node")
    tested = [attached] if attached else node.get("depends_on", {}).get("nodes", ())
    return frozenset().union(*(_tables_of(unique_id, manifest) for unique_id in tested))


def _tables_of(unique_id: str, manifest: Mapping[str, Any]) -> frozenset[str]:
    if unique_id in manifest["sources"]:
        nodes = manifest["nodes"].values()
        made = (node for node in nodes if unique_id in node.get("depends_on", {}).get("nodes", ()))
        return frozenset(table_name(node) for node in made if node["resource_type"] != "test")
    return _tables_behind(manifest["nodes"].get(unique_id), manifest)


def _lines(
    failed: Sequence[Mapping[str, Any]], skipped: int, manifest: Mapping[str, Any], target: Path
) -> Iterator[str]:
    for result in failed[:SHOWN]:
        node = manifest["nodes"].get(result["unique_id"], {})
        yield _test(result, node, target, manifest) if _is_test(result) else _model(result, node)
    if len(failed) > SHOWN:
        yield f"and {len(failed) - SHOWN} more"
    counts = ", ".join(filter(None, [f"{len(failed)} failed", f"{skipped} skipped as a result" if skipped else ""]))
    yield f"dbt: {counts}; full log: {target / 'dbt.log'}"


def _is_test(result: Mapping[str, Any]) -> bool:
    return str(result["unique_id"]).startswith(("test.", "unit_test."))


def _model(result: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    name = table_name(node) if "alias" in node else result["unique_id"]
    file = f" (dbt_project/{node['original_file_path']})" if "original_file_path" in node else ""
    return f"{name}{file}: {database_message(result['message'])}"


def _test(result: Mapping[str, Any], node: Mapping[str, Any], target: Path, manifest: Mapping[str, Any]) -> str:
    text = f"test {_test_name(node) or result['unique_id']}{_tested(node, manifest)}"
    if result["status"] != "fail":
        return f"{text}: {database_message(result['message'])}"
    rows = result["failures"]
    found = compiled_test(node, target)
    command = f'; to see them: lakehouse sql --role writer "$(cat {quote(str(found))})"' if found else ""
    return f"{text} found {rows} failing {finds(node)}{'s' * (rows != 1)}{command}"


def compiled_test(node: Mapping[str, Any], target: Path) -> Path | None:
    """The file with the query of a test, as dbt has run it."""
    sql = target / "compiled" / node.get("package_name", "") / node.get("original_file_path", "") / node.get("path", "")
    files = [sql, target / str(node.get("compiled_path", "")), *sorted(target.rglob(f"{node.get('name', '?')}.sql"))]
    return next((file for file in files if file.is_file()), None)


def _test_name(node: Mapping[str, Any]) -> str | None:
    return (node.get("test_metadata") or {}).get("name") or node.get("name")


def _tested(node: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    tested = node.get("attached_node") or next(iter(node.get("depends_on", {}).get("nodes", ())), None)
    found = manifest["nodes"].get(tested) or manifest["sources"].get(tested)
    column = f".{node['column_name']}" if node.get("column_name") else ""
    return f" of {found['schema']}.{found.get('alias') or found['name']}{column}" if found else ""


def _without_cells(name: str, said: str) -> str:
    """A message of Trino's without what it cites of rows: Dagster keeps it, and no erasure reaches it there."""
    if name not in OF_VALUES or OF_THE_TEXT.match(said):
        return said
    if QUOTED.search(said):
        return QUOTED.sub("…", said)
    return re.sub(r"[:\d].*", "…", said)


def database_message(message: str | None) -> str:
    """The database's error message, without the text that dbt and the Trino client add, and without values of rows."""
    lines = [line.strip() for line in (message or "no message").splitlines() if line.strip()]
    named = lines[1:] if len(lines) > 1 and DBT_ERROR.match(lines[0]) else lines
    text = " ".join(line for line in named if not line.startswith("compiled code at "))
    trino = re.match(r"Trino\w+\(type=\w+, name=(\w+), message=\"(.*)\", query_id=(\w+)\)", text)
    if trino and trino[1] == "ICEBERG_COMMIT_ERROR" and "conflicting" in trino[2]:
        return f"{CONFLICT} ({trino[1]}, query {trino[3]})"
    told = shortened(visible(_without_cells(trino[1], trino[2]) if trino else lost_connection(text) or text), LONGEST)
    return f"{told} ({trino[1]}, query {trino[3]})" if trino else told or "no message"
