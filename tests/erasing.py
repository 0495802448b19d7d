"""A source with people in it, all layers above it, and the oracle of an erasure: the bytes on the disk of the store."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zlib
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from erasure.run import erase, repeat
from erasure.steps import Erasure
from lakehouse.catalog.open import open_catalog
from lakehouse.declarations import Column, Declarations, declarations_from
from lakehouse.declarations.dbt.manifest import dbt_environment, load_manifest
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from maintenance.inventory.lake import list_relations
from scaffold import apply, declared_alone, models_of, plan
from tests.orchestrated import copy_project
from tests.warehouse import hand_to_store
from tests.world import World, make_world

COLUMNS = ("id", "name", "email", "letter", "tier", "joined")
DDL = """
CREATE TABLE people (id int PRIMARY KEY, name text, email text, letter text, tier text, joined timestamp);
ALTER TABLE people ALTER letter SET STORAGE EXTERNAL
"""
SOURCES = """sources:
  - name: {name}
    schema: raw_{name}
    config: {{meta: {{owners: [people@example.com]}}}}
    tables:
      - name: people
        description: People.
        config:
          meta:
            raw: {{relation: public.people, key: [id]}}
            vault:
              hub: {{name: {name}_person, column: person_id}}
              satellites:
                {name}_pii: {{columns: [name, email, letter], personal: true}}
                {name}_tier: {{columns: [tier, joined]}}
        columns:
          - {{name: id, data_type: integer, description: Number.}}
          - {{name: name, data_type: text, description: Name.}}
          - {{name: email, data_type: text, description: Address.}}
          - {{name: letter, data_type: text, description: A long letter.}}
          - {{name: tier, data_type: text, description: Tier.}}
          - {{name: joined, data_type: timestamp, description: Since when.}}
"""
MART = """select hub.hk_{name}_person, hub.person_id, upper(pii.name) || ' <' || pii.email || '>' as contact, tier.tier
from {{{{ ref('hub_{name}_person') }}}} as hub
join {{{{ ref('sat_{name}_pii_v1') }}}} as pii on pii.hk_{name}_person = hub.hk_{name}_person and pii.is_current
join {{{{ ref('sat_{name}_tier_v1') }}}} as tier on tier.hk_{name}_person = hub.hk_{name}_person and tier.is_current
"""


@dataclass(frozen=True)
class People:
    """The source, and its layers by name."""

    world: World
    manifest: dict[str, Any]
    declarations: Declarations

    @property
    def name(self) -> str:
        return self.world.source.name

    @property
    def settings(self) -> Settings:
        return self.world.settings

    @property
    def tables(self) -> tuple[str, ...]:
        """Every table that is stored."""
        n = self.name
        vault = (f"hub_{n}_person", f"sat_{n}_pii", f"sat_{n}_tier", f"sts_{n}_person")
        return (
            f"raw_{n}.people",
            f"parsed.parsed_{n}__people",
            *(f"vault.{t}" for t in vault),
            f"marts.dim_{n}_person",
        )

    def load(self, spark: Any, *arguments: str, **environment: str) -> None:
        """Ingests, then runs dbt."""
        self.world.ingest(spark)
        self.dbt(
            "run", "--select", "parsed", "current", "stage", "vault", "timelines", "marts", *arguments, **environment
        )

    def dbt(self, *arguments: str, **environment: str) -> None:
        project = self.settings.dbt_project_dir
        place = ["--project-dir", str(project), "--profiles-dir", str(project), "--target-path", str(project / "t")]
        command = [str(Path(sys.executable).with_name("dbt")), *arguments, *place, "--log-path", str(project / "t")]
        variables = {**os.environ, **dbt_environment(self.settings), **environment}
        done = subprocess.run(command, capture_output=True, text=True, env=variables)
        assert done.returncode == 0, done.stdout[-3000:]

    def erase(self, spark: Any, key: str) -> Erasure:
        return erase(self.settings, self.declarations, self.manifest, f"{self.name}.people", [key], spark)

    def repeat(self, spark: Any) -> list[Erasure]:
        done, problems = repeat(self.settings, self.declarations, self.manifest, self.name, spark)
        if problems:
            raise LakehouseError("; ".join(problems))
        return done

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """What Trino answers."""
        return [tuple(row) for row in query(self.settings, text)]

    def texts_of(self, number: int) -> tuple[str, ...]:
        """What is to be found nowhere: all that the source says of a person, as far as a bound shows it."""
        name, email, letter = self.world.rows(f"SELECT name, email, letter FROM people WHERE id = {number}")[0]
        return (name[:24], name[:24].upper(), email[:15], letter[:15], letter[-40:])

    def checksums(self, *numbers: int) -> dict[str, Any]:
        """Of every table, what is there of everybody but these people, and how many rows."""
        return {table: self._checksum(table, numbers) for table in self.tables}

    def _checksum(self, table: str, numbers: tuple[int, ...]) -> tuple[int, str]:
        columns = [row[0] for row in query(self.settings, f"DESCRIBE {table}")]
        key = next(c for c in columns if c in ("id", "person_id") or c.startswith("hk_"))
        hashes = [hashlib.md5(str(n).encode()).hexdigest() for n in numbers]
        gone = [str(n) for n in numbers] + hashes
        text = ", ".join(f"'{value}'" for value in gone) or "''"
        names = ", ".join(f'"{c}"' for c in columns)
        rows = query(self.settings, f"SELECT count(*), to_hex(checksum(row({names}))) FROM {table} "
                                    f"WHERE coalesce(cast({key} AS varchar), '') NOT IN ({text})")  # fmt: skip
        return rows[0][0], rows[0][1]


def make_raw_people(settings: Settings, **limits: Any) -> People:
    """A database of its own with 300 people, all with a letter that is stored apart; no models."""
    policy = RawPolicy(relation="public.people", key=("id",), personal=("name", "email", "letter"))
    world = make_world(settings, DDL, {"people": policy}, **limits)
    salt = "g || current_database()"
    letter = f"(SELECT string_agg(md5(i || '-' || {salt}), '') FROM generate_series(1, 80) i)"
    world.sql(
        f"INSERT INTO people SELECT g, 'Surname-' || md5({salt}), md5('at' || {salt}) || '@example.com', {letter},"
        " 'BRONZE', timestamp '2020-01-01' + g * interval '1 hour' FROM generate_series(1, 300) g"
    )
    columns = tuple(Column(name=n, data_type=None, description="") for n in COLUMNS)
    table = world.source.tables[0].model_copy(update={"columns": columns})
    world = replace(world, source=world.source.model_copy(update={"tables": (table,)}))
    return People(world, {}, world.declarations)


def make_people(settings: Settings, project: Path) -> People:
    """The same, with models of every layer in a project of its own."""
    world = make_raw_people(settings).world
    copy_project(settings, project)
    name = world.source.name
    models = project / "dbt_project" / "models"
    (models / "sources" / f"{name}.yml").write_text(SOURCES.format(name=name))
    mine = settings.model_copy(update={"project_dir": project, "sources": world.settings.sources})
    apply(plan(mine.dbt_project_dir, name, models_of(declared_alone(mine), name)))
    (models / "marts").mkdir()
    (models / "marts" / f"dim_{name}_person.sql").write_text(MART.format(name=name))
    manifest = load_manifest(mine)
    declared = declarations_from(manifest, mine.dbt_project_dir)
    manifest["sources"] |= others_of(mine)
    world = replace(world, settings=mine, source=declared.source(name))
    return People(world, manifest, declared)


def others_of(settings: Settings) -> dict[str, Any]:
    """The tables of other tests' projects, which share this lake, as sources that this project knows."""
    with closing(open_catalog(settings)) as catalog:
        names = [relation.name for relation in list_relations(catalog)]
    return {
        f"source.others.{n}": {"schema": n.namespace, "identifier": n.name, "source_name": "", "name": ""}
        for n in names
    }


def traces(settings: Settings, *texts: str) -> list[str]:
    """Files of the warehouse whose bytes hold one of these texts, in whatever they are packed: Parquet is read row by
    row, Avro's blocks are inflated, everything is also searched as it lies there."""
    folder = settings.home / "data" / "s3" / "warehouse"
    needles = [text.encode() for text in texts]
    return [str(path) for path in sorted(folder.rglob("*")) if path.is_file() and holds(path, needles)]


def holds(path: Path, needles: list[bytes]) -> bool:
    """Whether the file does, as it lies there or unpacked."""
    content = path.read_bytes()
    if content[:4] == b"PAR1":  # other tests plant objects that only bear the name
        content += json.dumps(pq.ParquetFile(path).read().to_pylist(), default=_plain).encode()
    elif content[:4] == b"Obj\x01":
        content += _inflated(content)
    return any(needle in content for needle in needles)


def _plain(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _inflated(content: bytes) -> bytes:
    """The blocks between the sync markers: each is its numbers, then deflated bytes."""
    sync = content[-16:]
    parts = []
    for block in content.split(sync)[1:-1]:
        at = 0
        for _ in range(2):
            while block[at] & 0x80:
                at += 1
            at += 1
        parts.append(zlib.decompress(block[at:], -15))
    assert parts or (content.endswith(sync) and b"deflate" in content)
    return b"".join(parts)


def copy_lake(people: People, to: Path) -> dict[str, str]:
    """A backup: the objects of the warehouse, and the catalog's pointers by table."""
    from ingestion.state import store

    shutil.copytree(people.settings.home / "data" / "s3" / "warehouse", to)
    with store.connect_catalog(people.settings) as catalog:
        rows = catalog.execute("SELECT table_namespace || '.' || table_name, metadata_location FROM iceberg_tables")
        return {name: location for name, location in rows.fetchall() if name in people.tables}


def restore_lake(people: People, backup: Path, pointers: dict[str, str]) -> None:
    """The backup's objects beside those that are there, and its pointers."""
    from ingestion.state import store

    warehouse = people.settings.home / "data" / "s3" / "warehouse"
    shutil.copytree(backup, warehouse, dirs_exist_ok=True)
    hand_to_store(people.settings, warehouse)
    with store.connect_catalog(people.settings) as catalog:
        for name, location in pointers.items():
            namespace, table = name.split(".")
            catalog.execute(
                "UPDATE iceberg_tables SET metadata_location = %s WHERE table_namespace = %s AND table_name = %s",
                (location, namespace, table),
            )
