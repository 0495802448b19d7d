"""A fourth source in a copy of the dbt project: `zoo`, by YAML and thin models alone, and the means to run it.

Its raw table is written here rather than ingested, so that a test decides what arrives when.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from ingestion.sink.publish import ensure_cuts
from lakehouse.catalog.open import open_catalog
from lakehouse.declarations.dbt.manifest import dbt_environment
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from tests.histories import Row, TableHistory

SOURCE = """
sources:
  - name: zoo
    schema: raw_zoo
    description: Animals.
    tables:
      - name: animals
        description: Animals and the keepers who look after them.
        config: {meta: {raw: {relation: public.animals, key: [id]}}}
        data_tests: [cdc_vault.raw_log_is_sound]
        columns:
          - {name: id, data_type: integer, description: Number.}
          - {name: keeper_id, data_type: integer, description: Keeper.}
          - {name: name, data_type: text, description: Name.}
          - {name: story, data_type: text, description: A long story.}
          - {name: weight, data_type: "numeric(8,3)", description: Weight.}
"""
MODELS = {
    "parsed/zoo/parsed_zoo__animals": "{{ cdc_vault.parsed_table('zoo', 'animals') }}",
    "current/zoo/current_zoo__animals": "{{ cdc_vault.current_table('zoo', 'animals') }}",
    "stage/zoo/stg_zoo__animals": """{{ cdc_vault.stage(
        source_model='parsed_zoo__animals',
        hashed_columns={
          'hk_animal': ['id'], 'hk_keeper': ['keeper_id'], 'hk_animal_keeper': ['id', 'keeper_id'],
          'hd_animal_details': {'is_hashdiff': true, 'columns': ['name', 'story', 'weight']},
          'hd_status': {'is_hashdiff': true, 'columns': []},
        },
      ) }}""",
    "vault/zoo/hub_animal": "{{ cdc_vault.hub(src_pk='hk_animal', src_nk='id', source_model='stg_zoo__animals') }}",
    "vault/zoo/hub_keeper": """{{ cdc_vault.hub(
        src_pk='hk_keeper', src_nk='keeper_id', source_model='stg_zoo__animals') }}""",
    "vault/zoo/link_animal_keeper": """{{ cdc_vault.link(
        src_pk='hk_animal_keeper', src_fk=['hk_animal', 'hk_keeper'], source_model='stg_zoo__animals') }}""",
    "vault/zoo/eff_sat_animal_keeper": """{{ cdc_vault.eff_sat(
        src_pk='hk_animal_keeper', src_dfk='hk_animal', source_model='stg_zoo__animals') }}""",
    "vault/zoo/sat_animal_details": """{{ cdc_vault.sat(
        src_pk='hk_animal', src_hashdiff='hd_animal_details', src_payload=['name', 'story', 'weight'],
        source_model='stg_zoo__animals') }}""",
    "vault/zoo/sts_animal": "{{ cdc_vault.sts_sat(src_pk='hk_animal', source_model='stg_zoo__animals') }}",
    "vault/zoo/ma_sat_animal": """{{ cdc_vault.ma_sat(
        src_pk='hk_animal', src_cdk='id', src_hashdiff='hd_animal_details', src_payload=['name', 'story', 'weight'],
        source_model='stg_zoo__animals') }}""",
    "vault/zoo/ref_animal": """{{ cdc_vault.ref_table(
        src_pk='id', src_hashdiff='hd_animal_details', src_payload=['name', 'story', 'weight'],
        source_model='stg_zoo__animals') }}""",
    "vault/zoo/rts_animal": "{{ cdc_vault.rec_track_sat(src_pk='hk_animal', source_model='stg_zoo__animals') }}",
    "vault/zoo/nh_link_animal_keeper": """{{ cdc_vault.nh_link(
        src_pk='hk_animal_keeper', src_fk=['hk_animal', 'hk_keeper'], src_payload=['id', 'keeper_id'],
        source_model='stg_zoo__animals') }}""",
    "timelines/zoo/ma_sat_animal_v1": """{{ cdc_vault.timeline(
        source_model='ma_sat_animal', src_pk=['hk_animal', 'id'], src_hashdiff='hd_animal_details',
        src_payload=['name', 'story', 'weight']) }}""",
    "timelines/zoo/ref_animal_v1": """{{ cdc_vault.timeline(
        source_model='ref_animal', src_pk='id', src_hashdiff='hd_animal_details',
        src_payload=['name', 'story', 'weight']) }}""",
    "business/zoo/snap_zoo": """
        select distinct _valid_from as sdts, true as is_active from {{ ref('parsed_zoo__animals') }}""",
    "business/zoo/pit_animal": """{{ cdc_vault.pit(
        source_model='hub_animal', src_pk='hk_animal', satellites=['sat_animal_details', 'sts_animal'],
        snapshots='snap_zoo') }}""",
    "timelines/zoo/sat_animal_details_v1": """{{ cdc_vault.timeline(
        source_model='sat_animal_details', src_pk='hk_animal', src_hashdiff='hd_animal_details',
        src_payload=['name', 'story', 'weight']) }}""",
    "timelines/zoo/sts_animal_v1": """{{ cdc_vault.timeline(
        source_model='sts_animal', src_pk='hk_animal', src_hashdiff='hd_status') }}""",
    "timelines/zoo/eff_sat_animal_keeper_v1": """{{ cdc_vault.timeline(
        source_model='eff_sat_animal_keeper', src_pk='hk_animal_keeper', src_hashdiff='is_active',
        src_payload=['hk_animal']) }}""",
}
TESTS = """
models:
  - name: parsed_zoo__animals
    data_tests: [{cdc_vault.parsed_matches_raw: {arguments: {source_name: zoo, table_name: animals}}}]
  - name: stg_zoo__animals
    data_tests: [{cdc_vault.keys_are_given: {arguments: {src_pk: hk_keeper}}}]
  - name: hub_animal
    data_tests: [{cdc_vault.hub_is_sound: {arguments: {src_pk: hk_animal, src_nk: id, stage: stg_zoo__animals}}}]
  - name: link_animal_keeper
    data_tests:
      - cdc_vault.link_is_sound:
          arguments: {src_pk: hk_animal_keeper, hubs: {hk_animal: hub_animal, hk_keeper: hub_keeper}}
  - name: sat_animal_details
    data_tests: [{cdc_vault.sat_is_sound: {arguments: {src_pk: hk_animal, parent: hub_animal}}}]
  - name: eff_sat_animal_keeper
    data_tests: [{cdc_vault.sat_is_sound: {arguments: {src_pk: hk_animal_keeper, parent: link_animal_keeper}}}]
  - name: sat_animal_details_v1
    data_tests: [{cdc_vault.timeline_is_sound: {arguments: {src_pk: hk_animal, state: hd_animal_details}}}]
  - name: ma_sat_animal
    data_tests: [{cdc_vault.sat_is_sound: {arguments: {src_pk: hk_animal, src_cdk: id, parent: hub_animal}}}]
  - name: ref_animal
    data_tests: [{cdc_vault.ref_is_sound: {arguments: {src_pk: id}}}]
  - name: rts_animal
    data_tests: [{cdc_vault.rec_track_sat_is_sound: {arguments: {src_pk: hk_animal, parent: hub_animal}}}]
  - name: ma_sat_animal_v1
    data_tests: [{cdc_vault.timeline_is_sound: {arguments: {src_pk: [hk_animal, id], state: hd_animal_details}}}]
  - name: pit_animal
    data_tests:
      - cdc_vault.pit_is_sound: {arguments: {src_pk: hk_animal, satellites: [sat_animal_details, sts_animal]}}
  - name: eff_sat_animal_keeper_v1
    data_tests: [{cdc_vault.one_active_link: {arguments: {src_dfk: hk_animal}}}]
"""
COLUMNS = ("id", "keeper_id", "name", "story", "weight")
UTC_TIME = pa.timestamp("us", tz="UTC")
RAW = pa.schema([
    ("id", pa.int32()), ("keeper_id", pa.int32()), ("name", pa.string()), ("story", pa.string()),
    ("weight", pa.decimal128(8, 3)), ("_op", pa.string()), ("_epoch", pa.int32()), ("_commit_lsn", pa.int64()),
    ("_seq", pa.int64()), ("_xid", pa.int64()), ("_committed_at", UTC_TIME), ("_ingested_at", UTC_TIME),
    ("_unchanged", pa.list_(pa.string())), ("_old_key", pa.string()),
])  # fmt: skip


def animals() -> TableHistory:
    """An empty table of animals."""
    return TableHistory("id", COLUMNS, frozenset({"story", "name"}))


def random_animal(rng: random.Random) -> Any:
    """A maker of rows that have few different values, so that a state comes back often."""
    return lambda key: {
        "id": key,
        "keeper_id": rng.choice([1, 2, 3, None]),
        "name": rng.choice(["Leo", "", None, "a|b", "a\\"]),
        "story": rng.choice(["long " * 3, "other", None]),
        "weight": rng.choice([None, 1, 2]),
    }


@dataclass(frozen=True)
class Zoo:
    """The project with one more source, on a running stack."""

    settings: Settings
    project: Path
    source: str = "zoo"
    models: tuple[str, ...] = tuple(MODELS)

    def dbt(self, *arguments: str, without: str = "", models: Sequence[str] = (), **environment: str) -> None:
        """Runs dbt on some models, or on the source's, those of a layer left out; fails with dbt's last lines."""
        selection = models or [
            f"path:models/*/{self.source}",
            f"source:{self.source}",
            *(["--exclude", f"path:models/{without}"] if without else []),
        ]
        command = [str(Path(sys.executable).with_name("dbt")), *arguments, "--no-use-colors", "--select", *selection]
        place = {"DBT_TARGET_PATH": str(self.project / "target"), "DBT_LOG_PATH": str(self.project / "logs")}
        server = dbt_environment(self.settings)
        done = subprocess.run(
            command, cwd=self.project, env=os.environ | place | server | environment, capture_output=True, text=True
        )
        assert done.returncode == 0, "\n".join(done.stdout.splitlines()[-60:])

    def counted(self, test: str) -> int:
        """What a test of the last `dbt build` counted."""
        results = json.loads((self.project / "target" / "run_results.json").read_text())["results"]
        return next(int(result["failures"]) for result in results if f".{test}_" in result["unique_id"])

    def rows(self, sql: str) -> list[list[Any]]:
        """The lake's answer."""
        return query(self.settings, sql)

    def clear(self) -> None:
        """Drops what the source has in the lake."""
        for model in sorted(self.models, reverse=True):
            layer, _, name = model.split("/")
            kind = "view" if layer in ("current", "stage", "timelines") else "table"
            schema = "parsed" if layer in ("parsed", "current") else "vault"
            self.rows(f"create schema if not exists {schema}")
            self.rows(f"drop {kind} if exists {schema}.{name}")
        self.rows("create schema if not exists raw_zoo")
        self.rows("drop table if exists raw_zoo.animals")

    def publish(self, rows: list[Row], ingested_at: datetime) -> None:
        """Appends raw rows and the cut that covers them."""
        catalog = open_catalog(self.settings)
        try:
            catalog.create_namespace_if_not_exists("raw_zoo")
            table = catalog.create_table_if_not_exists(("raw_zoo", "animals"), RAW)
            table.append(pa.Table.from_pylist([row | {"_ingested_at": ingested_at} for row in rows], schema=RAW))
            _publish_cut(catalog, rows[-1], ingested_at)
        finally:
            catalog.close()

    def snapshots(self) -> dict[str, int]:
        """Newest snapshot of every table of the zoo below raw."""
        tables = [Path(model).name for model in self.models if model.startswith(("parsed/", "vault/"))]
        schema = {name: "parsed" if name.startswith("parsed") else "vault" for name in tables}
        parts = [
            f"select '{name}', max_by(snapshot_id, committed_at) from {schema[name]}.\"{name}$snapshots\""
            for name in tables
        ]
        return dict(self.rows(" union all ".join(parts)))


def _publish_cut(catalog: SqlCatalog, last: Row, at: datetime) -> None:
    cuts = ensure_cuts(catalog)
    cut = {
        "source": "zoo", "epoch": last["_epoch"], "cut_lsn": last["_commit_lsn"], "cut_at": at, "published_at": at,
        "snapshots": [("animals", "1")],
    }  # fmt: skip
    cuts.append(pa.Table.from_pylist([cut], schema=cuts.schema().as_arrow()))


def empty_project(settings: Settings, place: Path) -> Path:
    """A copy of the project without the samples' models; its sessions are in a time zone that nothing may go by."""
    project = place / "dbt_project"
    others = shutil.ignore_patterns("target", "logs", "marts", "business", "retail", "bank", "payroll")
    shutil.copytree(settings.dbt_project_dir, project, ignore=others)
    profiles = project / "profiles.yml"
    profiles.write_text(profiles.read_text().replace("timezone: UTC", "timezone: Asia/Kolkata"))
    return project


def build_zoo(settings: Settings, place: Path) -> Zoo:
    """Copies the project and adds the source; no macro, no Python."""
    project = empty_project(settings, place)
    (project / "models/sources/zoo.yml").write_text(SOURCE)
    for name, sql in MODELS.items():
        path = project / "models" / f"{name}.sql"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(sql)
    (project / "models/vault/zoo/tests.yml").write_text(TESTS)
    zoo = Zoo(settings, project)
    zoo.clear()
    return zoo
