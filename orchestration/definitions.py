"""The composition root: builds all Dagster definitions from the declarations.

Loading reads files and contacts no server; dbt parses the project again if it has changed.
"""

import warnings

import dagster as dg

from lakehouse.declarations import declarations_from
from lakehouse.declarations.checks.unread import unread_tables
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.settings import Settings, load_settings
from orchestration.assets.dbt_assets import load_assets, other_sources
from orchestration.assets.dbt_resource import dbt_resource
from orchestration.assets.policies import policies, refuse_wrong_policies
from orchestration.assets.table_health import health_definitions
from orchestration.assets.translator import stage_keys, stored_keys
from orchestration.assets.wrong_models import refuse_wrong_models
from orchestration.factory import source_definitions
from orchestration.jobs.maintain_job import maintain_definitions
from orchestration.jobs.maintenance_jobs import action_definitions
from orchestration.jobs.marts import marts_definitions
from orchestration.jobs.pins import pin_definitions
from orchestration.resources import IN_MEMORY, Lake, LakeSpark, without_config
from orchestration.runs.pools import pool_executor

warnings.filterwarnings("ignore", message=".*map_(resolved_)?asset_specs", category=dg.PreviewWarning)


def definitions(settings: Settings) -> dg.Definitions:
    """The definitions of raw tables, dbt models, marts and maintenance, with policies applied to every asset."""
    manifest = load_manifest(settings)
    declared = declarations_from(manifest, settings.dbt_project_dir).among(settings.sources)
    refuse_wrong_models(manifest, settings.dbt_project_dir)
    refuse_wrong_policies(manifest, settings.dbt_project_dir)
    unread = unread_tables(manifest, declared, settings.dbt_project_dir)
    first_day, pages, stages = settings.dagster.first_day, stored_keys(manifest), stage_keys(manifest)
    return dg.Definitions.merge(
        *(source_definitions(source, first_day, unread, stages) for source in declared.sources),
        dg.Definitions(assets=[*load_assets(manifest, first_day), *other_sources(manifest)]),
        marts_definitions(manifest, declared),
        health_definitions(pages),
        maintain_definitions(manifest, settings.dbt_project_dir, pages),
        action_definitions(manifest, settings.dbt_project_dir, pages),
        pin_definitions(settings.dbt_project_dir),
        dg.Definitions(
            resources={
                "lake": Lake(),
                "spark": without_config(LakeSpark),
                "dbt": without_config(lambda: dbt_resource(settings)),
                "io_manager": IN_MEMORY,
            },
            executor=pool_executor,
        ),
    ).map_asset_specs(func=policies(manifest, settings.dbt_project_dir))


defs = definitions(load_settings())
