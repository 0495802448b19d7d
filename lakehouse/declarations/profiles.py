"""The time zone of dbt's sessions, which decides on which day a mart puts a moment that it casts to a date.

Sessions of the worker, of views' readers at `/lake` and of `lakehouse sql` are in UTC. dbt takes the zone of
profiles.yml, or of the machine where that names none: a mart would have other days by who has built it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lakehouse.declarations.lines import PROFILES_FILE, PROJECT_FILE, line_in_file

UTC_NAMES = {"utc", "etc/utc", "uct", "etc/uct", "zulu", "etc/zulu", "universal", "etc/universal", "gmt", "etc/gmt"}


def other_timezones(project_dir: Path) -> list[str]:
    """For each output for Trino in the project's profile whose sessions are not in UTC on this machine, what to do."""
    root, project = _mapping(project_dir / PROFILES_FILE), _mapping(project_dir / PROJECT_FILE)
    profile = project.get("profile")
    outputs = _in(_in(root, str(profile)), "outputs")
    problems = []
    for name in outputs:
        output = _in(outputs, name)
        if output.get("type") == "trino" and (problem := _problem(output.get("timezone"))):
            path = (str(profile), "outputs", name, "timezone")
            problems.append(f"{line_in_file(project_dir, PROFILES_FILE, path)}: output {name!r} {problem}")
    return problems


def _problem(zone: object) -> str | None:
    """What is wrong with the zone of an output. One that dbt renders cannot be told here."""
    if zone is not None and (str(zone).lower() in UTC_NAMES or "{{" in str(zone)):
        return None
    if zone is not None:
        return (
            f"has the time zone {zone}, and sessions of the worker and of readers are in UTC, so a mart that casts a "
            "moment to a date would have other days by who has built it: write `timezone: UTC`, and in models whose "
            f"days are to be those of {zone}, `at_timezone(moment, '{zone}')`"
        )
    from tzlocal import get_localzone_name  # what Trino's client takes where a profile names no zone

    if (here := str(get_localzone_name())).lower() in UTC_NAMES:
        return None
    return (
        f"has no time zone, so Dagster would build marts in that of this machine ({here}), the worker in UTC, and a "
        "mart that casts a moment to a date would have other days by who has built it: add `timezone: UTC`"
    )


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
