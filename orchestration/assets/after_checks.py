"""Records a table's materialization only after its asset checks have passed."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import dagster as dg

Parents = Mapping[dg.AssetKey, AbstractSet[dg.AssetKey]]


def after_checks(
    events: Iterable[Any],
    checks: Collection[dg.AssetCheckKey],
    parents: Parents,
    key_of: Callable[[dg.Output[Any]], dg.AssetKey],
    was_killed: Callable[[], bool] = lambda: False,
) -> Iterator[Any]:
    """Yields the events of a dbt build, each table's output after its last check and after its parents' outputs.

    The output of a table with a failed check is dropped. If `events` raises, the waiting outputs are yielded first: dbt
    has run the tests that it could. If it `was_killed` before, those with checks to come are dropped.
    """
    waiting: dict[dg.AssetKey, list[Any]] = {}
    left: dict[dg.AssetKey, set[str]] = defaultdict(set)
    for check in checks:
        left[check.asset_key].add(check.name)
    try:
        for event in events:
            if isinstance(event, dg.Output):
                waiting[key_of(event)] = [event]
            elif isinstance(event, dg.AssetCheckResult) and event.asset_key in waiting:
                waiting[event.asset_key].append(event)
                left[event.asset_key].discard(event.check_name or "")
            else:
                yield event
            yield from _released(waiting, lambda key: not left[key] and waiting.keys().isdisjoint(parents[key]))
    except Exception:
        is_over = not was_killed()
        yield from _released(waiting, lambda key: is_over or not left[key])
        raise
    yield from _released(waiting, lambda key: True)


def _released(waiting: dict[dg.AssetKey, list[Any]], is_ready: Callable[[dg.AssetKey], bool]) -> Iterator[Any]:
    for key in list(waiting):  # in order of arrival: no table before its parents
        if is_ready(key):
            output, *checks = waiting.pop(key)
            yield from checks if any(map(_has_failed, checks)) else (output, *checks)


def _has_failed(check: dg.AssetCheckResult) -> bool:
    return not check.passed and check.severity is dg.AssetCheckSeverity.ERROR
