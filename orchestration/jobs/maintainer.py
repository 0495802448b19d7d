"""One maintenance run, as a resource: its connections, its plan and its clock are shared by the run's steps."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import PrivateAttr

from lakehouse.settings import Settings

if TYPE_CHECKING:
    from maintenance.inventory.outcome import Outcome
    from maintenance.inventory.session import Session
    from maintenance.runner.maintain import Prepared, Run


class Maintainer(dg.ConfigurableResource):
    """Made anew for each run; steps of one run are in one process."""

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
        """Measures and plans; Spark is started by the first step that needs it."""
        from maintenance.inventory.session import Session
        from maintenance.runner.maintain import prepare

        self._session = Session(settings, start_spark=lambda: spark.spark_session)
        self._prepared = prepare(self._session, tables, group, budget_minutes)
        return self._prepared

    @property
    def tables(self) -> list[str]:
        """The tables that the plan has steps for, the most worthwhile first."""
        from maintenance.runner.maintain import by_table

        return [str(steps[0].table.name) for steps in by_table(self._plan().plan.steps)]

    def act(self, table: str, report: "Callable[[Outcome], None]") -> "list[Outcome]":
        """Takes the planned steps of one table."""
        from maintenance.runner.maintain import act

        prepared, session = self._plan(), self._session
        assert session is not None
        steps = [step for step in prepared.plan.steps if str(step.table.name) == table]
        done = act(session, steps, prepared, report)
        self._outcomes += done
        return done

    def finish(self, outcomes: "Iterable[Outcome]", report: "Callable[[Outcome], None]") -> "Run":
        """Writes the history; what could not be measured is reported here and counts as failed."""
        from maintenance.runner.maintain import finish

        prepared, session = self._plan(), self._session
        assert session is not None
        for outcome in prepared.unmeasured:
            report(outcome)
        self._finished = True
        return finish(session, prepared, [*prepared.unmeasured, *outcomes])

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Closes the connections; an interrupted run is written down as far as it came."""
        if self._session is None:
            return
        try:
            if self._prepared is not None and not self._finished:
                self.finish(self._outcomes, lambda outcome: None)
        finally:
            self._session.close()

    def _plan(self) -> "Prepared":
        if self._prepared is None:
            raise dg.Failure("there is no plan in this process: launch the whole job again", allow_retries=False)
        return self._prepared
