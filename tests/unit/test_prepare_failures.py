"""`lakehouse prepare` as an owner of not everything: it says which statement failed, and leaves nothing."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from ingestion.sources.postgres.setup import prepare
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, SourceSettings
from tests.world import declared_source

SHOP = declared_source(
    "shop",
    {
        "orders": RawPolicy(relation="public.orders", key=("id",)),
        "visits": RawPolicy(relation="public.visits", key=("id",)),
    },
)
GRANT = 'GRANT SELECT ON "public"."visits_old" TO "lake"'


@pytest.fixture
def shop(cluster: str) -> Iterator[psycopg.Connection[Any]]:
    """The superuser, in a database whose tables are the role dba's."""
    with psycopg.connect(cluster, autocommit=True) as admin:
        admin.execute("CREATE ROLE dba LOGIN; CREATE ROLE archive; CREATE ROLE lake LOGIN REPLICATION")
        admin.execute("GRANT CREATE ON DATABASE postgres TO dba")
        admin.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        admin.execute("CREATE TABLE visits (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        admin.execute("CREATE TABLE visits_old PARTITION OF visits FOR VALUES FROM (0) TO (9)")
        admin.execute("ALTER TABLE orders OWNER TO dba; ALTER TABLE visits OWNER TO dba")
        admin.execute("ALTER TABLE visits_old OWNER TO archive")
        yield admin
        admin.execute("DROP PUBLICATION IF EXISTS lakehouse; DROP TABLE orders, visits")
        admin.execute("REVOKE CREATE ON DATABASE postgres FROM dba; DROP OWNED BY dba, archive, lake")
        admin.execute("DROP ROLE dba, archive, lake")


@pytest.fixture
def of_dba(cluster: str) -> Settings:
    urls = [SecretStr(cluster.replace("postgres@", f"{role}:hidden@")) for role in ("lake", "dba")]
    return Settings(_env_file=None, sources={"shop": SourceSettings(url=urls[0], owner_url=urls[1])})


def left(admin: psycopg.Connection[Any]) -> list[tuple[str]]:
    """What the role lake was granted, and the publications."""
    return admin.execute(
        "SELECT relname::text FROM pg_class WHERE relacl::text LIKE '%lake=%' UNION SELECT pubname FROM pg_publication"
    ).fetchall()


def failure(of_dba: Settings) -> str:
    with pytest.raises(LakehouseError) as caught:
        prepare(of_dba, SHOP)
    assert "\n" not in str(caught.value) and "hidden" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("SELECT", "permission denied for table visits_old"),
        ("GRANT INSERT ON visits_old TO dba", 'no privileges were granted for "visits_old"'),
    ],
)
def test_a_partition_of_another_owner_is_named_with_the_statement(
    shop: psycopg.Connection[Any], of_dba: Settings, before: str, reason: str
) -> None:
    """Postgres named a table alone, and of an owner with another right it only warned: nothing was granted."""
    shop.execute(before.encode())
    assert failure(of_dba) == (
        f"source 'shop', table 'visits': as the owner, role dba, `{GRANT}` failed and everything was rolled back: "
        f'{reason}: "public"."visits_old" belongs to role archive: as a superuser run that statement, or GRANT archive '
        "TO dba, and then `lakehouse prepare shop` again"
    )
    assert left(shop) == []


@pytest.mark.parametrize("remedy", [GRANT, "GRANT archive TO dba"])
def test_what_the_message_says_to_do_is_enough(shop: psycopg.Connection[Any], of_dba: Settings, remedy: str) -> None:
    failure(of_dba)
    shop.execute(remedy.encode())
    prepare(of_dba, SHOP)
    prepare(of_dba, SHOP)
    assert sorted(left(shop)) == [("lakehouse",), ("orders",), ("visits",), ("visits_old",)]


def test_a_table_that_is_not_the_owners_to_publish_is_named(shop: psycopg.Connection[Any], of_dba: Settings) -> None:
    shop.execute("ALTER TABLE visits_old OWNER TO dba; ALTER TABLE orders OWNER TO archive")
    shop.execute("GRANT SELECT ON orders TO dba WITH GRANT OPTION")
    said = failure(of_dba)
    assert said.startswith(
        "source 'shop', table 'orders': as the owner, role dba, `CREATE PUBLICATION \"lakehouse\" FOR"
    )
    assert 'must be owner of table orders: "public"."orders" belongs to role archive: as a superuser run that' in said
    assert left(shop) == []


def test_a_right_that_no_table_is_about_is_named_with_its_statement(
    shop: psycopg.Connection[Any], of_dba: Settings
) -> None:
    shop.execute("ALTER TABLE visits_old OWNER TO dba; REVOKE CREATE ON DATABASE postgres FROM dba")
    said = failure(of_dba)
    assert said.startswith("source 'shop': as the owner, role dba, `CREATE PUBLICATION")
    assert said.endswith(
        "permission denied for database postgres: run that statement as a superuser, or give dba the right, and run "
        "`lakehouse prepare shop` again"
    )


def test_a_table_that_somebody_has_locked_is_named(
    cluster: str, shop: psycopg.Connection[Any], of_dba: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestion.sources.postgres.setup.owner.LOCK_TIMEOUT", "200ms")
    shop.execute("ALTER TABLE visits_old OWNER TO dba")
    prepare(of_dba, SHOP)
    shop.execute("ALTER PUBLICATION lakehouse DROP TABLE orders")
    with psycopg.connect(cluster) as other:
        other.execute("LOCK TABLE orders IN SHARE MODE")
        said = failure(of_dba)
    assert said.startswith(
        "source 'shop', table 'orders': as the owner, role dba, `ALTER PUBLICATION \"lakehouse\" ADD"
    )
    assert said.endswith(
        "something has held a lock on the table for 200ms; once it has ended, run `lakehouse prepare shop` again"
    )
