"""One maintenance run as a resource: its steps share connections, plan and time budget."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import PrivateAttr

from lakehouse.files.logs import forget_outputs
from lakehouse.settings import Settings

if TYPE_CHECKING:
    from maintenance.inventory.outcome import Outcome
    from maintenance.inventory.session import Session
    from maintenance.runner.maintain import Prepared, Run


class Maintainer(dg.ConfigurableResource):
    """Created for each run; all steps of a run are in one process."""

    _session: "Session | None" = PrivateAttr(None)
    _prepared: "Prepared | None" = PrivateAttr(None)
    _outcomes: "list[Outcome]" = PrivateAttr(default_factory=list)
    _finished: bool = PrivateAttr(False)

    def prepare(
        self,
        settings: Settings,
        spark: LazyPySparkResource,
        tables: Sequence[str],
        group: str | None,
        budget_minutes: float | None,
    ) -> "Prepared":
        """Measures the tables and plans; the first step that needs Spark starts it. Old output of runs goes."""
        from maintenance.inventory.session import Session
        from maintenance.runner.maintain import prepare

        forget_outputs(settings.home / "logs" / "dagster")
        self._session = Session(settings, start_spark=lambda: spark.spark_session)
        self._prepared = prepare(self._session, tables, group, budget_minutes)
        return self._prepared

    @property
    def tables(self) -> list[str]:
        """The tables with planned steps, by decreasing expected gain."""
        from maintenance.runner.maintain import by_table

        return [str(steps[0].table.name) for steps in by_table(self._plan().plan.steps)]

    def act(self, table: str, report: "Callable[[Outcome], None]") -> "list[Outcome]":
        """Runs the planned steps of one table."""
        from maintenance.runner.maintain import act

        prepared, session = self._plan(), self._session
        assert session is not None
        steps = [step for step in prepared.plan.steps if str(step.table.name) == table]
        done = act(session, steps, prepared, report)
        self._outcomes += done
        return done

    def finish(self, outcomes: "Iterable[Outcome]", report: "Callable[[Outcome], None]") -> "Run":
        """Writes the history. Tables that could not be measured are reported here and count as failed."""
        from maintenance.runner.maintain import finish

        prepared, session = self._plan(), self._session
        assert session is not None
        for outcome in prepared.unmeasured:
            report(outcome)
        self._finished = True
        return finish(session, prepared, [*prepared.unmeasured, *outcomes])

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Closes the connections; records the finished actions of an interrupted run."""
        if self._session is None:
            return
        try:
            if self._prepared is not None and not self._finished:
                self.finish(self._outcomes, lambda outcome: None)
        finally:
            self._session.close()

    def _plan(self) -> "Prepared":
        if self._prepared is None:
            raise dg.Failure("this process has no plan: launch the whole job again", allow_retries=False)
        return self._prepared
