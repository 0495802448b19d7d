"""How Trino is told to plan statements of few rows."""

import json
import os
from argparse import Namespace
from typing import Any

import pytest

from lakehouse.settings import load_settings
from orchestration.worker.dbt.plans import SMALL_ROWS, of_marts


def test_small_marts_are_planned_as_they_are_written_and_large_ones_by_statistics() -> None:
    small = of_marts(load_settings(), SMALL_ROWS)
    assert small["join_reordering_strategy"] == "NONE" and small["lake.statistics_enabled"] == "false"
    assert of_marts(load_settings(), SMALL_ROWS + 1) == {}


@pytest.mark.parametrize("properties", [{}, {"join_reordering_strategy": "NONE", "lake.statistics_enabled": "false"}])
def test_dbt_gives_the_session_what_the_worker_says(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]
) -> None:
    from dbt.config.runtime import load_profile
    from dbt.flags import set_from_args
    from dbt_common.context import set_invocation_context

    project = str(load_settings().dbt_project_dir)
    monkeypatch.setenv("LAKEHOUSE_SESSION_PROPERTIES", json.dumps(properties))
    set_invocation_context(dict(os.environ))
    set_from_args(Namespace(PROFILES_DIR=project, PROJECT_DIR=project), None)
    credentials: Any = load_profile(project, {}).credentials
    assert credentials.session_properties == properties
