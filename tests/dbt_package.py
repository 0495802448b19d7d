"""A dbt project of somebody else, who has nothing of this one but its package."""

import os
import subprocess
import sys
from pathlib import Path

from lakehouse.settings import DBT_PACKAGE

FILES = {
    "dbt_project.yml": """
name: stranger
version: 1.0.0
config-version: 2
profile: stranger
flags: {send_anonymous_usage_stats: false}
models:
  stranger:
    +schema: parsed
""",
    "profiles.yml": """
stranger:
  target: dev
  outputs:
    dev:
      type: trino
      method: "{{ 'ldap' if env_var('LAKEHOUSE_TRINO__PASSWORD', '') else 'none' }}"
      host: "{{ env_var('LAKEHOUSE_TRINO__HOST', '127.0.0.1') }}"
      port: "{{ env_var('LAKEHOUSE_TRINO__PORT', '8080') | as_number }}"
      http_scheme: "{{ env_var('LAKEHOUSE_TRINO__HTTP_SCHEME', 'http') }}"
      user: "{{ env_var('LAKEHOUSE_TRINO__USER', 'lakehouse') }}"
      password: "{{ env_var('LAKEHOUSE_TRINO__PASSWORD', '') }}"
      cert: "{{ (env_var('LAKEHOUSE_TRINO__CA', '') or 'True') | as_native }}"
      database: "{{ env_var('LAKEHOUSE_TRINO__CATALOG', 'lake') }}"
      schema: stranger
""",
    "packages.yml": f"packages: [{{local: {DBT_PACKAGE}}}]\n",
    "models/farm.yml": """
sources:
  - name: farm
    schema: raw_farm
    tables:
      - name: animals
        config: {meta: {raw: {relation: public.animals, key: [id]}}}
        data_tests: [cdc_vault.raw_log_is_sound]
        columns:
          - {name: id, data_type: integer}
          - {name: name, data_type: text}
models:
  - name: hub_animal
    data_tests: [{cdc_vault.hub_is_sound: {arguments: {src_pk: hk_animal, src_nk: id, stage: stg_farm__animals}}}]
""",
    "models/parsed_farm__animals.sql": """
{{ config(materialized='append_only') }}
{{ cdc_vault.parsed_table('farm', 'animals') }}
""",
    "models/current_farm__animals.sql": """
{{ config(materialized='view') }}
{{ cdc_vault.current_table('farm', 'animals') }}
""",
    "models/stg_farm__animals.sql": """
{{ config(materialized='view') }}
{{ cdc_vault.stage(source_model='parsed_farm__animals', hashed_columns={
  'hk_animal': ['id'], 'hd_animal': {'is_hashdiff': true, 'columns': ['name']},
}) }}
""",
    "models/hub_animal.sql": """
{{ config(materialized='append_only') }}
{{ cdc_vault.hub(src_pk='hk_animal', src_nk='id', source_model='stg_farm__animals') }}
""",
    "models/sat_animal.sql": """
{{ config(materialized='append_only') }}
{{ cdc_vault.sat(
  src_pk='hk_animal', src_hashdiff='hd_animal', src_payload=['name'], source_model='stg_farm__animals',
) }}
""",
    "models/dim_animal.sql": """
{{ config(materialized='rebuilt_table') }}
select id from {{ ref('hub_animal') }}
""",
}


def make_project(place: Path) -> Path:
    """The project's folder."""
    for name, text in FILES.items():
        file = place / "stranger" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return place / "stranger"


def run_dbt(project: Path, *arguments: str, **environment: str) -> str:
    """What dbt says; fails with its last lines."""
    command = [str(Path(sys.executable).with_name("dbt")), *arguments, "--no-use-colors"]
    places = {"DBT_PROFILES_DIR": str(project), "DBT_LOG_PATH": str(project / "logs")}
    done = subprocess.run(
        command, cwd=project, env=os.environ | places | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, "\n".join(done.stdout.splitlines()[-40:])
    return done.stdout
