"""dbt in this process: its modules are imported and the project is parsed, so that a load only renders and runs SQL.

The SQL is rendered for each load because windows and watermarks are literals in it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lakehouse.declarations.dbt.manifest import ensure_manifest, manifest_path
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from orchestration.assets.dbt_resource import environment, run_environment
from orchestration.runs.failures import FAILED, database_message
from orchestration.worker.dbt.part import part_of
from orchestration.worker.dbt.statements import Statements

if TYPE_CHECKING:
    from dbt.contracts.graph.manifest import Manifest

    from lakehouse.catalog.loads.remembered import Load

NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
QUICKLY = ("--no-write-json", "--no-populate-cache")
HEADER = "-- lakehouse: "  # of a model, written by the macro `load_header`


@dataclass(frozen=True)
class NodeResult:
    """What dbt says of one model or test: its status, rows found by a test, and the message of a failure.

    `load` is what a model wants remembered, `sql` the query of a test that failed, `examples` rows that it finds.
    """

    unique_id: str
    status: str
    seconds: float
    failures: int
    message: str
    load: "Load | None" = None
    sql: str = ""
    examples: str = ""

    @property
    def failed(self) -> bool:
        """Whether the model or test failed; a skipped one did not."""
        return self.status in FAILED


class WarmDbt:
    """A parsed project, parsed again when its files have changed; its statements say of which `session` they are."""

    def __init__(self, settings: Settings, session: str = "") -> None:
        self._settings, self._session, self.statements = settings, session, Statements()
        self._project: Manifest | None = None
        self._key = ""

    def refresh(self) -> bool:
        """Parses the project if its files have changed; whether it did. Raises LakehouseError if it does not parse."""
        target = ensure_manifest(self._settings)
        key = target.with_suffix(".key").read_text()
        if key == self._key:
            return False
        self._project, self._key = self._invoke(["parse"], None), key
        return True

    def run(self, command: str, names: Sequence[str], variables: Mapping[str, str] = NO_VARIABLES) -> list[NodeResult]:
        """Runs `dbt <command>` on models or tests; raises LakehouseError if dbt itself fails."""
        done = self._invoke([command, "--select", *names, *QUICKLY], self._part(names), variables) if names else None
        return [_result(result) for result in getattr(done, "results", ())]

    def compiled(self, names: Sequence[str], variables: Mapping[str, str] = NO_VARIABLES) -> dict[str, str]:
        """By unique id the SQL of these models or tests, without those that have errors."""
        arguments = ["compile", "--indirect-selection", "empty", "--select", *names, *QUICKLY]
        done = self._invoke(arguments, self._part(names), variables) if names else None
        found = {result.node.unique_id: result.node.compiled_code for result in getattr(done, "results", ())}
        return {unique_id: sql for unique_id, sql in found.items() if sql}

    def _part(self, names: Sequence[str]) -> "Manifest | None":
        return part_of(self._project, names) if self._project else None

    def _invoke(
        self, arguments: Sequence[str], project: "Manifest | None", variables: Mapping[str, str] = NO_VARIABLES
    ) -> Any:
        from dbt.cli.main import dbtRunner

        with (
            self.statements.running(),
            _flags_kept(),
            environment({**run_environment(self._settings, None, self._session), **variables}),
        ):
            done = dbtRunner(manifest=project).invoke([*arguments, *_options(self._settings)])
        if done.exception is not None:
            raise LakehouseError(f"dbt {arguments[0]}: {database_message(str(done.exception))}")
        return done.result


@contextmanager
def _flags_kept() -> Iterator[None]:
    """Takes back what dbt-adapters adds to a list of the module each time that an adapter is made.

    It looks through the whole stack for each of the list, so every run would take a millisecond longer than the last.
    """
    from dbt.adapters.base.impl import DEFAULT_BASE_BEHAVIOR_FLAGS

    known = list(DEFAULT_BASE_BEHAVIOR_FLAGS)
    try:
        yield
    finally:
        DEFAULT_BASE_BEHAVIOR_FLAGS[:] = known


def _options(settings: Settings) -> list[str]:
    project, target = str(settings.dbt_project_dir), str(manifest_path(settings).with_name("worker"))
    return [
        "--quiet", "--no-use-colors", "--log-level", "none", "--log-level-file", "none",
        "--no-send-anonymous-usage-stats",
        "--project-dir", project, "--profiles-dir", project, "--target-path", target, "--log-path", target,
    ]  # fmt: skip


def _result(result: Any) -> NodeResult:
    return NodeResult(
        unique_id=result.node.unique_id,
        status=str(result.status),
        seconds=result.execution_time,
        failures=result.failures or 0,
        message=database_message(result.message) if result.status in FAILED else str(result.message or ""),
        load=_load(result) if result.status == "success" else None,
        sql=getattr(result.node, "compiled_code", None) or "" if result.status == "fail" else "",
    )


def _load(result: Any) -> "Load | None":
    from lakehouse.catalog.loads.remembered import Load

    said = header_of(getattr(result.node, "compiled_code", None) or "")
    return (
        None if said is None else Load(said["remember"], said["base"], (result.adapter_response or {}).get("query_id"))
    )


def header_of(sql: str) -> dict[str, Any] | None:
    """What a model says to its materialization; see the macro `load_header`."""
    first = sql.strip().partition("\n")[0]
    said: dict[str, Any] | None = json.loads(first.removeprefix(HEADER)) if first.startswith(HEADER + "{") else None
    return said
