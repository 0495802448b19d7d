"""Two rows of one table that a hub takes for one thing: their stage's test `keys_are_given` counts them."""

from datetime import timedelta
from typing import Any

import pytest

from tests.unit.embedded_vault import START, Event, Vault

MAY = START + timedelta(days=50)
NORMALIZED: dict[str, Any] = {"columns": ["!own", "owner"], "normalize": "upper_trim"}
OF_ANOTHER_TYPE = ["!own", {"column": "owner", "type": "citext"}]


def vault_with(key: Any = NORMALIZED) -> Vault:
    """A vault of owners, whose keys are made so."""
    vault = Vault()
    vault.stage = {"hk_owner": key, "hd_row": vault.stage["hd_row"]}
    vault.models = {
        "hub_owner": ("hub", {"src_pk": "hk_owner", "src_nk": "owner"}),
        "sat_owner": ("sat", {"src_pk": "hk_owner", "src_hashdiff": "hd_row", "src_payload": ["a", "b"]}),
    }
    vault.make_stage()
    return vault


def row(lsn: int, owner: str, gone: bool = False) -> Event:
    """What became of a row."""
    return {"owner": owner, "a": None if gone else str(lsn), "gone": gone, "at": START + timedelta(hours=lsn),
            "lsn": lsn, "seq": 1}  # fmt: skip


def counted(vault: Vault) -> int:
    """The rows that share their key with another one."""
    sql = vault.context["rows_of_one_key"]("stg", "stg", "hk_owner")
    return len(vault.rows(sql)) if sql.strip() else 0


@pytest.mark.parametrize(("key", "other"), [(NORMALIZED, "AB "), (OF_ANOTHER_TYPE, "AB")])
def test_rows_whose_keys_the_hub_takes_for_one_are_counted_while_they_live(key: Any, other: str) -> None:
    """The one that lives was shown as deleted with the other one, and nobody was told."""
    vault = vault_with(key)
    vault.load([row(1, "ab"), row(2, other), row(3, "c")], MAY)
    assert counted(vault) == 2
    vault.load([row(4, other, gone=True)], MAY + timedelta(days=1))
    assert vault.rows("select max_by(is_deleted, sat.source_seq) from sat_owner as sat join hub_owner using (hk_owner)"
                      " where owner = 'ab'") == [(True,)]  # fmt: skip
    assert counted(vault) == 1
    vault.load([row(5, "ab", gone=True)], MAY + timedelta(days=2))
    assert counted(vault) == 0


def test_a_row_is_counted_with_one_that_has_not_changed_for_long() -> None:
    """The hub knows its spelling; of the stage, its last days are read."""
    vault = vault_with()
    vault.load([row(1, "ab"), row(2, "c")], MAY)
    vault.load([row(3, "AB")], MAY + timedelta(days=100))
    assert counted(vault) == 2
    vault.load([row(4, "c")], MAY + timedelta(days=200))
    assert counted(vault) == 0, "neither has changed for more than the days that are tested"


def test_a_row_that_got_another_spelling_of_its_key_is_not_counted() -> None:
    vault = vault_with()
    vault.load([row(1, "ab"), row(2, "ab", gone=True), row(3, "AB")], MAY)
    assert counted(vault) == 0
    vault.load([row(4, "AB")], MAY + timedelta(days=100))
    assert counted(vault) == 0


def test_nothing_is_read_where_no_two_keys_of_a_table_are_one() -> None:
    vault = vault_with(["!own", "owner"])
    vault.load([row(1, "ab"), row(2, "AB")], MAY)
    assert vault.context["rows_of_one_key"]("stg", "stg", "hk_owner").strip() == ""
