"""Which tables hold a subject, by the declaration and dbt's graph, and what nobody knows of: without any server."""

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from erasure.strays import strays
from erasure.subjects import parse_key
from erasure.targets import derived_targets, raw_target
from lakehouse.catalog.objects import StoredObject
from lakehouse.declarations import Column, Declarations, RawTable, declarations_from
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.declarations.metadata_columns import METADATA_COLUMNS, OF_TOPICS, PARSED_METADATA
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.declarations.vault.policy import VaultPolicy
from lakehouse.declarations.vault.problems import problems_of
from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from maintenance.inventory.lake import Lake, Relation, _group
from maintenance.inventory.outcome import TableName


@pytest.fixture(scope="module")
def project(home: Path) -> tuple[Declarations, dict[str, Any]]:
    settings = load_settings(home=home)
    manifest = load_manifest(settings)
    return declarations_from(manifest, settings.dbt_project_dir), manifest


def test_the_tables_that_hold_customers_are_found_from_the_graph(project: tuple[Declarations, dict[str, Any]]) -> None:
    declarations, manifest = project
    models = (node for node in manifest["nodes"].values() if node["resource_type"] == "model")
    columns = {(model["schema"], model["alias"]): tuple(model["columns"]) for model in models}
    found = derived_targets(declarations.source("retail").table("customers"), manifest, columns.get)
    assert {(str(place), place.treatment) for place in found} == {
        ("parsed.parsed_retail__customers", "empty"),
        ("vault.sat_customer_pii", "collapse"),
        ("vault.pit_customer", "rebuild"),
        ("marts.dim_customer", "rebuild"),
        ("marts.dim_customer_history", "rebuild"),
    }
    (satellite,) = (place for place in found if place.treatment == "collapse")
    assert (satellite.key, satellite.hashdiff) == (("hk_customer",), "hd_customer_pii")


def test_a_table_whose_rows_cannot_be_found_by_key_is_refused(project: tuple[Declarations, dict[str, Any]]) -> None:
    declarations, manifest = project
    with pytest.raises(
        LakehouseError,
        match=r"email of retail.customers, and no column identifies the subject: give it hk_customer, or let dbt",
    ):
        derived_targets(
            declarations.source("retail").table("customers"), manifest,
            lambda name: ("email",) if name[1] == "sat_customer_pii" else None,
        )  # fmt: skip


def below(*models: tuple[str, str, str]) -> dict[str, Any]:
    """A graph of models (folder, name, materialization), each reading the one before it, the first the raw table."""
    nodes: dict[str, Any] = {}
    parent = "source.shop.people"
    for folder, name, kind in models:
        nodes[f"model.{name}"] = {
            "resource_type": "model", "name": name, "schema": folder, "alias": name, "fqn": ["lakehouse", folder, name],
            "config": {"materialized": kind}, "depends_on": {"nodes": [parent]}, "original_file_path": f"{name}.sql",
        }  # fmt: skip
        parent = f"model.{name}"
    people = {"source_name": "shop", "schema": "raw_shop", "name": "people", "identifier": "people"}
    return {"nodes": nodes, "sources": {"source.shop.people": people}}


PARSED = ("parsed", "parsed_people", "append_only")


@pytest.mark.parametrize(
    ("columns", "kind", "key"),
    [
        (("hk_person", "id", "name"), "append_only", ("hk_person",)),
        (("hk_person", "id", "name"), "rebuilt_table", ("hk_person",)),
        (("id", "name"), "rebuilt_table", ("id",)),
        (("hk_order", "id", "name"), "rebuilt_table", ()),
        (("hk_order", "hk_person", "id", "name"), "append_only", ("hk_person",)),
    ],
)
def test_a_hash_key_finds_the_subject_before_a_column_that_is_called_as_its_key(
    columns: tuple[str, ...], kind: str, key: tuple[str, ...]
) -> None:
    """42 is a person's number, and an order's that names the person."""
    people = table({"hub": "person", "satellites": {"a": {"columns": ["name"], "personal": True}}})
    there = {("parsed", "parsed_people"): ("id", "name"), ("marts", "orders"): columns}
    parsed, orders = derived_targets(people, below(PARSED, ("marts", "orders", kind)), there.get)
    assert (parsed.key, orders.key) == (("id",), key)


def test_a_parsed_column_that_is_left_out_by_now_or_not_declared_any_more_is_emptied_too() -> None:
    """What was loaded before stays in it, and nobody says that it is not personal. A key and metadata stay."""
    people = table(personal=("name", "phone"), exclude=("phone",))
    there = {
        PARSED[:2]: ("id", "name", "phone", "fax", "load_date", "_email", "_deleted", *PARSED_METADATA),
        ("vault", "calls"): ("hk_x", "phone"),
    }  # fmt: skip
    (parsed,) = derived_targets(people, below(PARSED), there.get)
    assert parsed.personal == {"name", "phone", "fax", "load_date", "_email"}, "an underscore makes no metadata"
    with pytest.raises(LakehouseError, match="calls holds phone"):
        derived_targets(people, below(PARSED, ("vault", "calls", "append_only")), there.get)


@pytest.mark.parametrize("name", ["tier", "hd_size", "hd_gone"])
def test_a_column_of_the_source_is_no_hashdiff_whatever_it_is_called(name: str) -> None:
    """The subject's rows in parsed were deleted in the place of emptied."""
    people = table(personal=("name",), alias={"tier": "hd_size"})
    there = {("raw_shop", "people"): ("id", "name", "hd_size", "hd_gone"), PARSED[:2]: ("id", "name", name)}
    (parsed,) = derived_targets(people, below(PARSED), there.get)
    assert (parsed.treatment, parsed.hashdiff) == ("empty", None)


OF_VAULT = ("hk_person", "hd_pii", "is_deleted", "load_date", "applied_date", "source_seq", "record_source")


def test_what_a_satellite_still_has_of_a_column_that_is_not_declared_any_more_is_emptied() -> None:
    """Its own columns are not, though an undeclared one of the source may be called the same."""
    people = table({"hub": "person", "satellites": {"pii": {"columns": ["name"], "personal": True}}})
    there = {
        ("raw_shop", "people"): ("id", "name", "Fax", "_Email", *OF_VAULT, *METADATA_COLUMNS),
        ("parsed", "parsed_people"): ("id", "name"), ("vault", "sts_person"): ("hk_person", "is_deleted", "load_date"),
        ("vault", "sat_pii"): ("name", "fax", "_email", *OF_VAULT),
    }  # fmt: skip
    models = below(PARSED, ("vault", "sat_pii", "satellite"), ("vault", "sts_person", "append_only"))
    _, satellite = derived_targets(people, models, there.get)
    assert (satellite.identifier[1], satellite.personal) == ("sat_pii", {"name", "fax", "_email"})


@pytest.mark.parametrize("columns", [("id", "name"), ("hk_order", "id", "name")])
def test_an_appended_table_beyond_the_layers_that_keep_names_is_refused_without_a_hash_key(
    columns: tuple[str, ...],
) -> None:
    view, orders = ("marts", "renamed", "view"), ("vault", "orders", "append_only")
    with pytest.raises(
        LakehouseError,
        match=r"orders holds name of shop.people, and no column identifies the subject: let dbt build it whole",
    ):
        derived_targets(table(personal=("name",)), below(PARSED, view, orders), {("vault", "orders"): columns}.get)


def with_nodes(manifest: dict[str, Any], *nodes: dict[str, Any]) -> dict[str, Any]:
    """The graph with nodes of other kinds, as dbt describes them."""
    manifest["nodes"] |= {f"{node['resource_type']}.{node['name']}": node for node in nodes}
    return manifest


def node_of(kind: str, name: str, schema: str, *parents: str, **config: Any) -> dict[str, Any]:
    return {
        "resource_type": kind, "name": name, "schema": schema, "alias": name, "fqn": ["lakehouse", schema, name],
        "config": config, "depends_on": {"nodes": list(parents)}, "original_file_path": f"{kind}s/{name}.sql",
    }  # fmt: skip


def snapshot(name: str, unique_key: str | list[str], *parents: str) -> dict[str, Any]:
    """A snapshot of dbt's, in a folder that is called as one of models."""
    kept = node_of("snapshot", name, "snapshots", *parents, materialized="snapshot", unique_key=unique_key)
    return kept | {"fqn": ["lakehouse", "parsed", name]}


def failures(name: str, parent: str) -> dict[str, Any]:
    return node_of("test", name, "dbt_test__audit", parent, materialized="test", store_failures=True)


SEED = node_of("seed", "names", "lookup") | {"depends_on": {"macros": []}}
KEPT = ("id", "name", "Fax", "_is_deleted", "dbt_scd_id", "dbt_updated_at", "dbt_valid_from", "dbt_valid_to")


@pytest.mark.parametrize("unique_key", ["id", ["ID"]])
def test_a_snapshot_of_dbt_is_emptied_by_its_key_and_what_is_made_of_it_is_built_anew(
    unique_key: str | list[str],
) -> None:
    """Neither was looked at, and it was said that nothing was left."""
    manifest = with_nodes(
        below(PARSED), snapshot("people_history", unique_key, "model.parsed_people"), SEED,
        node_of("model", "seen", "marts", "snapshot.people_history", "seed.names", materialized="rebuilt_table"),
    )  # fmt: skip
    there = {
        ("raw_shop", "people"): ("id", "name", "Fax", "_is_deleted"), PARSED[:2]: ("id", "name"),
        ("snapshots", "people_history"): KEPT, ("marts", "seen"): ("who",),
    }  # fmt: skip
    _, kept, made = derived_targets(table(personal=("name",)), manifest, there.get)
    assert (kept.identifier, kept.treatment, kept.key) == (("snapshots", "people_history"), "empty", ("id",))
    assert kept.personal == {"name", "fax"}, "of its own columns dbt needs every value"
    assert (made.identifier, made.treatment) == (("marts", "seen"), "rebuild")


def test_a_snapshot_keeps_no_undeclared_column_that_is_called_as_one_of_the_vault() -> None:
    """The person's values stayed in it, and in one that the project does not know any more."""
    hub = {"name": "person", "column": "person_number"}
    people = table({"hub": hub, "satellites": {"pii": {"columns": ["name"], "personal": True}}}, personal=("name",))
    of_source = ("is_deleted", "hd_pii", "person_number", "hd_size")
    manifest = with_nodes(below(PARSED), snapshot("people_history", "hk_person", "model.parsed_people"))
    there = {
        ("raw_shop", "people"): ("id", "name", "load_date", "hk_person", *of_source), PARSED[:2]: ("id", "name"),
        ("snapshots", "people_history"): ("hk_person", "load_date", *of_source, *KEPT),
    }  # fmt: skip
    _, kept = derived_targets(people, manifest, there.get)
    assert kept.personal == {"name", *of_source}, "its rows are found by its own key"
    former = {f"snapshots.of_{name}": ("id", name, *KEPT[3:]) for name in (*of_source, "load_date")}
    lake = lake_of({"raw_shop.people": there["raw_shop", "people"], **former, "vault.sts": ("is_deleted",)}, [])
    found = {trace.table for trace in strays(lake, "s3://w", manifest, people, ())}
    assert found == {f"snapshots.of_{name}" for name in of_source}


def test_the_places_of_events_in_topics_are_not_personal_once_the_table_comes_from_postgres() -> None:
    """Raw keeps their columns. A satellite lost its places, and tables that have some were to be dropped."""
    people = table({"hub": "person", "satellites": {"pii": {"columns": ["name"], "personal": True}}})
    places = tuple(OF_TOPICS)
    there = {
        ("raw_shop", "people"): ("id", "name", *places), PARSED[:2]: ("id", "name"),
        ("vault", "sat_pii"): ("name", "_topic", *OF_VAULT),
    }  # fmt: skip
    manifest = below(PARSED, ("vault", "sat_pii", "satellite"))
    _, satellite = derived_targets(people, manifest, there.get)
    assert satellite.personal == {"name"}
    own = {**there, ("raw_shop", "people"): ("id", "name", "_topic", "_offset")}
    assert derived_targets(people, manifest, own.get)[1].personal == {"name", "_topic"}, "the source's own column"
    lake = lake_of({"raw_shop.people": there["raw_shop", "people"], "vault.places": places}, [])
    assert strays(lake, "s3://w", manifest, people, ()) == []


@pytest.mark.parametrize(
    ("unique_key", "parents", "columns"),
    [
        ("id || tier", ["model.parsed_people"], KEPT),
        ("id", ["model.parsed_people", "model.parsed_orders"], KEPT),
        ("id", ["model.parsed_people"], ("hk_person", *KEPT)),
    ],
)
def test_a_snapshot_whose_rows_its_key_does_not_find_is_refused(
    unique_key: str, parents: list[str], columns: tuple[str, ...]
) -> None:
    """A column that is not of its unique key is null in the rows from before the snapshot had it."""
    people = table({"hub": "person", "satellites": {"a": {"columns": ["name"], "personal": True}}})
    manifest = with_nodes(below(PARSED), snapshot("people_history", unique_key, *parents))
    with pytest.raises(
        LakehouseError,
        match=r"^snapshots/people_history.sql: people_history holds name of shop.people, and its unique_key does not "
        r"identify the subject: drop snapshots.people_history, then let dbt take it without .*unique_key hk_person$",
    ):
        derived_targets(people, manifest, {("snapshots", "people_history"): columns}.get)
    by_hash = with_nodes(below(PARSED), snapshot("people_history", "hk_person", *parents))
    there = {("snapshots", "people_history"): ("hk_person", *KEPT)}
    (kept,) = derived_targets(people, by_hash, there.get)
    assert (kept.key, kept.is_hashed) == (("hk_person",), True)


def test_rows_that_a_test_has_stored_are_dropped_whatever_their_columns() -> None:
    """They are whole rows, or values under another name. Of tests that store none there is no table."""
    manifest = with_nodes(
        below(PARSED, ("marts", "seen", "rebuilt_table")), failures("not_null_name", "source.shop.people"),
        failures("unique_name", "model.seen"), failures("stores_none", "model.seen"), failures("other", "model.orders"),
    )  # fmt: skip
    there = {("marts", "seen"): ("who",), ("dbt_test__audit", "not_null_name"): ("id", "name")}
    there |= {("dbt_test__audit", name): ("unique_field",) for name in ("unique_name", "other")}
    found = derived_targets(table(personal=("name",)), manifest, there.get)
    discarded = [(f"dbt_test__audit.{name}", "discard") for name in ("not_null_name", "unique_name")]
    assert [(str(place), place.treatment) for place in found] == [("marts.seen", "rebuild"), *discarded]


SEEN = node_of("model", "seen", "marts", "source.own.it", materialized="rebuilt_table")


def with_own(manifest: dict[str, Any], schema: str, name: str) -> dict[str, Any]:
    """The graph with a source of dbt, `source.own.it`, that names a relation of the lake."""
    own = {"source_name": "own", "schema": schema, "name": "it", "identifier": name}
    return {**manifest, "sources": {**manifest["sources"], "source.own.it": own}}


@pytest.mark.parametrize(
    ("schema", "name", "round_"),
    [("mirror_shop", "people", 0), ("parsed", "parsed_people", 1), ("Marts", "FIRST", 1), ("snapshots", "kept", 1)],
)
def test_what_reads_the_subject_by_a_source_of_dbt_is_found_and_built_after_what_it_reads(
    schema: str, name: str, round_: int
) -> None:
    """A mart over a mirror was not looked at, and it was said that nothing was left."""
    models = with_nodes(
        below(PARSED, ("marts", "first", "rebuilt_table")), snapshot("kept", "id", "model.parsed_people"), SEEN,
        failures("not_null_it", "source.own.it"),
    )  # fmt: skip
    audited = ("dbt_test__audit", "not_null_it")
    there = {("marts", "first"): ("who",), ("marts", "seen"): ("who",), audited: ("name",)}
    found = derived_targets(table(personal=("name",)), with_own(models, schema, name), there.get)
    assert [(str(place), place.round) for place in found if place.treatment == "rebuild"] == [
        ("marts.first", 0), ("marts.seen", round_),
    ]  # fmt: skip
    assert found[-1].identifier == audited


def test_a_model_that_is_made_of_itself_by_a_source_of_dbt_is_refused_where_it_has_the_subject() -> None:
    """Its own relation alone is one that it adds to."""
    there, people = {("marts", "seen"): ("who",), ("marts", "other"): ("who",)}, table(personal=("name",))
    alone = with_nodes(below(PARSED), SEEN | {"depends_on": {"nodes": ["source.own.it", "model.parsed_people"]}})
    assert [str(place) for place in derived_targets(people, with_own(alone, "marts", "seen"), there.get)] == [
        "marts.seen"
    ]
    for above in ((), ("model.parsed_people",)):
        other = node_of("model", "other", "marts", "model.seen", *above, materialized="rebuilt_table")
        both = with_own(with_nodes(below(PARSED), SEEN, other), "marts", "other")
        if above:
            with pytest.raises(
                LakehouseError, match=r"models/seen.sql: seen is made of itself, by a source of dbt that"
            ):
                derived_targets(people, both, there.get)
        else:
            assert not derived_targets(people, both, there.get)


def lake_of(tables: dict[str, tuple[str, ...] | None], files: list[str], staged: tuple[str, ...] = ()) -> Lake:
    """A lake of tables with columns (None: the metadata cannot be read), each with a file, and of other files."""
    names = {TableName(*name.split(".")): columns for name, columns in tables.items()}
    relations = tuple(Relation(n, "table", f"s3://w/{n.namespace}/{n.name}-1/metadata/0.json") for n in names)
    paths = [*files, *(f"{relation.location}data/a.parquet" for relation in relations)]
    objects = tuple(StoredObject(path, 1, datetime.now(UTC)) for path in paths)

    def loaded(columns: tuple[str, ...]) -> Any:
        return SimpleNamespace(schema=lambda: SimpleNamespace(fields=[SimpleNamespace(name=name) for name in columns]))

    readable = {name: loaded(columns) for name, columns in names.items() if columns is not None}
    return Lake(objects, staged, relations, readable, _group(objects, {r.location for r in relations}))


def test_tables_and_folders_that_no_project_knows_are_named_with_what_to_do() -> None:
    people = table({"hub": "person", "satellites": {"pii": {"columns": ["name"], "personal": True}}})
    lake = lake_of(
        {
            "raw_shop.people": ("id", "name", "Fax", "_email", "is_deleted", *METADATA_COLUMNS),
            "vault.sat_fax": ("hk_person", "fax"), "vault.sat_email": ("hk_person", "_email"), "marts.ops": ("_op",),
            "vault.sts_old": ("hk_person", "is_deleted"),
            "raw_shop.people_before": ("id", "name"), "meta.spool": ("name",),
            "parsed.parsed_people": ("id", "name"), "vault.sat_pii": ("hk_person", "Name"), "marts.seen": ("tier",),
            "marts.broken": None, "marts.known": ("name",), "elsewhere.people": ("name",), "marts.orders": ("name",),
        },
        ["s3://w/marts/orders-0/data/a.parquet", "s3://w/marts/orders-0/data/b.parquet", "s3://w/erasures/1.json",
         "s3://w/marts/empty-0/metadata/0.json", "s3://w/raw_shop/coming/data/a.parquet", "s3://w/meta/x/a.parquet"],
        ("s3://w/raw_shop/coming/",),
    )  # fmt: skip
    manifest = below(PARSED, ("marts", "orders", "rebuilt_table"), ("vault", "renamed", "append_only"))
    manifest["sources"]["known"] = {"schema": "marts", "identifier": "known"}
    found = {trace.table: trace for trace in strays(lake, "s3://w", manifest, people, ())}
    unknown = {"raw_shop.people_before", "vault.sat_pii", "vault.sat_fax", "vault.sat_email", "marts.broken"}
    assert set(found) == {*unknown, "marts/orders-0"}, "the source has dropped two columns, which satellites have"
    assert "drop it" in found["vault.sat_pii"].why and found["marts/orders-0"].path == "s3://w/marts/orders-0/"
    assert found["marts/orders-0"].why.startswith("2 data files") and "delete the folder" in found["marts/orders-0"].why
    mine = {("raw_shop", "people"), ("raw_shop", "people_before")}
    assert [f.table for f in strays(lake, "s3://w", {}, people, mine)] == []


def test_what_snapshots_tests_and_seeds_of_the_project_have_made_is_known_and_what_former_ones_made_is_not() -> None:
    lake = lake_of(
        {
            "snapshots.kept": ("id", "name"), "snapshots.former": ("id", "name"), "dbt_test__audit.unique": ("name",),
            "dbt_test__audit.former": ("name",), "lookup.names": ("name",),
        },
        ["s3://w/dbt_test__audit/killed-0/data/a.parquet"],
    )  # fmt: skip
    manifest = with_nodes(below(PARSED), snapshot("kept", "id", "model.parsed_people"), failures("unique", "x"), SEED)
    found = {trace.table for trace in strays(lake, "s3://w", manifest, table(personal=("name",)), ())}
    assert found == {"snapshots.former", "dbt_test__audit.former", "dbt_test__audit/killed-0"}


def test_what_a_killed_build_of_a_mart_has_left_is_found_and_nobody_is_told_to_drop_the_mart() -> None:
    """The copy of a mart has the mart's files, which go with it when Trino drops it. A new one is in its own folder."""
    people = table({"hub": "person", "satellites": {"pii": {"columns": ["name"], "personal": True}}})
    lake = lake_of(
        {"marts_next.orders": ("name",), "marts_next.other": ("name",)}, ["s3://w/marts_next/new-0/data/a.parquet"]
    )
    manifest = below(PARSED, ("marts", "orders", "rebuilt_table"))
    found = {trace.table: trace.why for trace in strays(lake, "s3://w", manifest, people, ())}
    assert found.keys() == {"marts_next.other", "marts_next/new-0"}
    assert "delete the folder" in found["marts_next/new-0"]


def table(vault: dict[str, Any] | None = None, **raw: Any) -> RawTable:
    return RawTable(
        source="shop", name="people", description="", load=LoadPolicy(), maintenance=None, owners=(),
        columns=tuple(Column(name=n, data_type=None, description="") for n in ("id", "name", "tier")),
        raw=RawPolicy(relation="public.people", key=("id",), **raw),
        vault=VaultPolicy.model_validate(vault) if vault else None,
    )  # fmt: skip


def test_a_raw_column_that_nobody_declared_counts_as_personal() -> None:
    place = raw_target(table(personal=("name",)), ("_op",))
    assert place.personal_among(("id", "name", "tier", "_op", "added_yesterday")) == ["name", "added_yesterday"]


def test_personal_data_that_could_not_be_erased_is_a_mistake_with_a_code() -> None:
    hub = {"hub": "person"}
    mistakes = [
        table({**hub, "satellites": {"a": {"columns": ["name", "tier"]}}}, personal=("name",)),
        table({**hub, "satellites": {"a": {"columns": ["id", "name", "tier"], "personal": True}}}),
        table({**hub, "references": {"tier": "tier"}, "satellites": {"a": ["name"]}}, personal=("tier",)),
    ]
    texts = [next(text for _, text in problems_of(mistake) if text.startswith("V8")) for mistake in mistakes]
    assert texts == [
        "V8: name is personal data: put it into a satellite with `personal: true`",
        "V8: key column id is personal data, and a key cannot be erased",
        "V8: tier is personal data, and a reference cannot be erased",
    ]


def test_a_subject_is_named_by_the_declared_key() -> None:
    assert parse_key(table(personal=("name",)), ["id=a=b"]) == {"id": "a=b"}
    with pytest.raises(LakehouseError, match="declares no personal data"):
        parse_key(table(), ["id=1"])
    odd = table(personal=("name",))
    odd = odd.model_copy(update={"raw": odd.raw.model_copy(update={"key": ("a", "a=b", "c")})})
    assert parse_key(odd, ["a=b=1", "a=2", "c="]) == {"a": "2", "a=b": "1", "c": ""}
    with pytest.raises(LakehouseError, match="name the subject by its key"):
        parse_key(odd, ["a=b=1", "a=2", "c"])


def test_a_subject_that_is_named_twice_is_refused() -> None:
    """The last value counted: of `id=1 id=2` the first person stayed without a word."""
    with pytest.raises(LakehouseError, match=r"shop\.\w+: id is given twice: name one subject at a time$"):
        parse_key(table(personal=("name",)), ["id=1", "id=2"])
