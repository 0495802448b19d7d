"""Lists all definitions of the code location, so that changes of the graph show in review.

After an intended change: `python -m orchestration.graph > tests/unit/graph.txt`.
"""

from collections.abc import Iterator

import dagster as dg


def describe(defs: dg.Definitions) -> list[str]:
    """A sorted line per asset, check, job, sensor and schedule."""
    return sorted({*_assets(defs), *_checks(defs), *_jobs(defs), *_triggers(defs)})


def _assets(defs: dg.Definitions) -> Iterator[str]:
    for spec in defs.resolve_all_asset_specs():
        yield f"asset {spec.key.to_user_string()}"


def _checks(defs: dg.Definitions) -> Iterator[str]:
    for key in defs.resolve_asset_graph().asset_check_keys:
        yield f"check {key.asset_key.to_user_string()} {key.name}"


def _jobs(defs: dg.Definitions) -> Iterator[str]:
    for job in defs.resolve_all_job_defs():
        if not job.name.startswith("__"):
            days = " by day" if job.partitions_def else ""
            yield f"job {job.name}{days}"
            yield from (f"job {job.name} {key.to_user_string()}" for key in job.asset_layer.executable_asset_keys)


def _triggers(defs: dg.Definitions) -> Iterator[str]:
    repository = defs.get_repository_def()
    for sensor in repository.sensor_defs:
        target = sensor.job_name if sensor.has_jobs else "checks"
        yield f"sensor {sensor.name} → {target} {sensor.default_status.value}"
    for schedule in repository.schedule_defs:
        crons = schedule.cron_schedule
        when = crons if isinstance(crons, str) else ", ".join(crons)
        yield f"schedule {schedule.name} → {schedule.job_name} {when} {schedule.default_status.value}"


if __name__ == "__main__":
    from orchestration.definitions import defs

    print("\n".join(describe(defs)))
