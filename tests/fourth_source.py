"""A source the code has never seen: two tables whose names, columns and types come from a seed.

What a user would write by hand is written here: one YAML file and a few dbt models, nothing else.
"""

import random
from dataclasses import dataclass
from pathlib import Path

# Postgres type → an expression of n that yields a value of it.
TYPES = {
    "text": "md5(n::text || '{salt}')",
    "integer": "(n * 7919) % 100003",
    "bigint": "n::bigint * 10000000019",
    "numeric(14,3)": "(n * 1.125)::numeric(14,3)",
    "boolean": "n % 3 = 0",
    "date": "date '2001-01-01' + n % 9000",
    "timestamp": "timestamp '2010-01-01 00:00:00' + n * interval '17 minutes 3.000001 seconds'",
    "timestamptz": "timestamptz '2015-06-01 12:00:00+02' + n * interval '1 hour'",
    "double precision": "n / 3.0::double precision",
    "uuid": "md5('{salt}' || n)::uuid",
}

MAINTENANCE = "{schedule_group: weekly, compact: {target_file_size_mb: 64, min_input_files: 5}}"


@dataclass(frozen=True)
class Table:
    """A table: its first column is its key."""

    name: str
    columns: tuple[tuple[str, str], ...]

    @property
    def key(self) -> str:
        """The key column."""
        return self.columns[0][0]

    def ddl(self) -> str:
        """CREATE TABLE."""
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns)
        return f"CREATE TABLE {self.name} ({columns}, PRIMARY KEY ({self.key}))"

    def insert(self, first: int, last: int) -> str:
        """Rows made from the numbers first to last."""
        values = ", ".join(TYPES[kind].replace("{salt}", name) for name, kind in self.columns[1:])
        return f"INSERT INTO {self.name} SELECT n, {values} FROM generate_series({first}, {last}) AS n"


def make_tables(seed: int, count: int = 2) -> tuple[Table, ...]:
    """Tables with an integer key and three to eight columns of various types."""
    chance = random.Random(seed)
    names = chance.sample(["vessels", "harbours", "cargoes", "crews", "routes", "permits"], count)
    return tuple(_table(chance, name) for name in names)


def _table(chance: random.Random, name: str) -> Table:
    words = chance.sample(
        ["label", "weight", "grade", "since", "active", "code", "rate", "origin"], chance.randint(3, 8)
    )
    columns = [(f"{name}_id", "integer"), *((word, chance.choice(list(TYPES))) for word in words)]
    return Table(name, tuple(columns))


def declare(project: Path, source: str, tables: tuple[Table, ...], maintenance: str = MAINTENANCE) -> None:
    """Writes the declaration and the models into a copy of the dbt project; the policy is YAML."""
    models = project / "models"
    (models / "sources" / f"{source}.yml").write_text(_sources(source, tables, maintenance))
    for folder in ("parsed", "current", "stage", "vault"):
        (models / folder / source).mkdir(parents=True)
    for table in tables:
        name, hub = f"{source}__{table.name}", f"{source}_{table.name}"
        payload = [column for column, _ in table.columns[1:]]
        _write(models / "parsed" / source / f"parsed_{name}.sql", f"parsed_table('{source}', '{table.name}')")
        _write(models / "current" / source / f"current_{name}.sql", f"current_table('{source}', '{table.name}')")
        hashes = {f"hk_{hub}": [table.key], f"hd_{hub}": {"is_hashdiff": True, "columns": payload}}
        _write(
            models / "stage" / source / f"stg_{name}.sql",
            f"stage(source_model='parsed_{name}', derived_columns={{}}, hashed_columns={_jinja(hashes)})",
        )
        _write(
            models / "vault" / source / f"hub_{hub}.sql",
            f"hub(src_pk='hk_{hub}', src_nk='{table.key}', source_model='stg_{name}')",
        )
        _write(
            models / "vault" / source / f"sat_{hub}.sql",
            f"sat(src_pk='hk_{hub}', src_hashdiff='hd_{hub}', src_payload={payload}, source_model='stg_{name}')",
        )


def _jinja(value: object) -> str:
    return repr(value).replace("True", "true")


def _write(path: Path, call: str) -> None:
    path.write_text("{{ cdc_vault." + call + " }}\n")


def _sources(source: str, tables: tuple[Table, ...], maintenance: str) -> str:
    head = f"""sources:
  - name: {source}
    schema: raw_{source}
    description: A source from a seed.
    config:
      meta:
        owners: [harbour@example.com]
        maintenance: {maintenance}
    tables:
"""
    return head + "".join(_declared(table) for table in tables)


def _declared(table: Table) -> str:
    columns = "".join(f'          - {{name: {name}, data_type: "{kind}"}}\n' for name, kind in table.columns)
    return f"""      - name: {table.name}
        description: Table {table.name}.
        config: {{meta: {{raw: {{relation: public.{table.name}, key: [{table.key}]}}}}}}
        data_tests: [cdc_vault.raw_log_is_sound]
        columns:
{columns}"""
