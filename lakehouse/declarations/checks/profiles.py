"""The time zone of dbt's sessions, which decides on which day a mart puts a moment that it casts to a date.

Sessions of the worker, of views' readers at `/lake` and of `lakehouse sql` are in UTC. dbt takes the zone of
profiles.yml, or of the machine where that names none: a mart would have other days by who has built it. Where the
machine's zone has no name, as in a container, dbt sends none, and Trino takes its own machine's.
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import yaml

from lakehouse.declarations.lines import PROFILES_FILE, PROJECT_FILE, line_in_file

UTC_NAMES = {
    "utc", "etc/utc", "uct", "etc/uct", "z", "zulu", "etc/zulu", "universal", "etc/universal", "gmt", "etc/gmt",
    "+00:00",
}  # fmt: skip
"""Those that mean UTC also where the machine knows no zones, or not in this spelling."""
DEFAULT_TARGET = "default"
_MOMENTS = tuple(datetime(year, month, 1, tzinfo=UTC) for year in range(1900, 2038) for month in (1, 7))


def other_timezones(project_dir: Path) -> list[str]:
    """For the output for Trino that dbt takes of the project's profile, if its sessions are not in UTC on this machine,
    what to do. One for each output where dbt renders which it takes."""
    root, project = _mapping(project_dir / PROFILES_FILE), _mapping(project_dir / PROJECT_FILE)
    profile = project.get("profile")
    problems = []
    for name, output in _targets(_in(root, str(profile))):
        if output.get("type") == "trino" and (problem := _problem(output.get("timezone"))):
            path = (str(profile), "outputs", name, "timezone")
            problems.append(f"{line_in_file(project_dir, PROFILES_FILE, path)}: output {name!r} {problem}")
    return problems


def _targets(profile: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    target = os.environ.get("DBT_TARGET") or str(profile.get("target") or DEFAULT_TARGET)
    outputs = _in(profile, "outputs")
    for name in outputs:
        if name == target or "{{" in target:
            yield name, _in(outputs, name)


def _problem(zone: object) -> str | None:
    """What is wrong with the zone of an output. One that dbt renders cannot be told here."""
    if zone in (None, ""):
        return _problem_here()
    if "{{" in str(zone) or _means_utc(str(zone)):
        return None
    return (
        f"has the time zone {zone}, and sessions of the worker and of readers are in UTC, so a mart that casts a "
        "moment to a date would have other days by who has built it: write `timezone: UTC`, and in models whose "
        f"days are to be those of {zone}, `at_timezone(moment, '{zone}')`"
    )


def _problem_here() -> str | None:
    """What is wrong with an output that names no zone, so that this machine's counts."""
    from tzlocal import get_localzone, get_localzone_name  # what Trino's client asks then

    try:
        with warnings.catch_warnings(action="ignore"):
            here = get_localzone_name() or None
            if _means_utc(here) if here else _is_utc(get_localzone()):
                return None
    except (ZoneInfoNotFoundError, OSError, ValueError) as error:
        why = str(error.args[0] if error.args else error).strip().split("\n")[0].rstrip(":")
        return f"has no time zone, and that of this machine cannot be told ({why}): add `timezone: UTC`"
    return (
        f"has no time zone, so Dagster would build marts in that of this machine ({here or 'which has no name'}), the "
        "worker in UTC, and a mart that casts a moment to a date would have other days by who has built it: add "
        "`timezone: UTC`"
    )


def _means_utc(zone: str) -> bool:
    """Whether a zone is UTC by its name, or by its clock: `Etc/GMT+0` and `Greenwich` are."""
    if zone.lower() in UTC_NAMES:
        return True
    try:
        return _is_utc(ZoneInfo(zone))
    except (ZoneInfoNotFoundError, OSError, ValueError):  # none that there is: Trino's client refuses it
        return False


def _is_utc(zone: tzinfo) -> bool:
    """Whether the zone has never been off UTC: London is not, in summer."""
    return all(moment.astimezone(zone).utcoffset() == timedelta(0) for moment in _MOMENTS)


def _mapping(file: Path) -> Mapping[str, Any]:
    """What dbt itself refuses is none."""
    try:
        found = yaml.safe_load(file.read_bytes())
    except (OSError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def _in(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = mapping.get(key)
    return found if isinstance(found, dict) else {}
