"""The vault follows its declaration: what is declared of a table that is loaded already holds for its whole history."""

from datetime import timedelta

from tests.unit.embedded_vault import START, Event, Vault

MAY = START + timedelta(days=50)


def test_a_new_reference_to_a_hub_brings_the_keys_that_were_loaded_before() -> None:
    """They reached the link and never the hub: its watermark was that of the whole stage."""
    vault = Vault()
    vault.models["rts_owner"] = ("rec_track_sat", {"src_pk": "hk_owner"})
    vault.load([event(100, owner="x", a="p1"), event(101, owner="y", a="p2", id_=2)], MAY)
    vault.stage |= {"hk_payer": ["a"], "hk_row_payer": ["id", "line", "a"]}
    vault.make_stage()
    mentions = ["stg", {"model": "stg", "src_pk": "hk_payer", "src_nk": "a"}]
    vault.models |= {
        "hub_owner": ("hub", {"src_pk": "hk_owner", "src_nk": "owner", "source_model": mentions}),
        "rts_owner": ("rec_track_sat", {"src_pk": "hk_owner", "source_model": mentions}),
        "link_row_payer": ("link", {"src_pk": "hk_row_payer", "src_fk": ["hk_row", "hk_payer"]}),
    }
    vault.load([event(110, owner="z", a="p3", id_=3)], MAY + timedelta(days=1))
    before = vault.counts()
    vault.load([], MAY + timedelta(days=2))
    assert vault.counts() == before
    assert vault.rows("select owner from hub_owner order by 1") == [(k,) for k in ("p1", "p2", "p3", "x", "y", "z")]
    keys = vault.rows("select hk_owner from hub_owner order by 1")
    assert vault.rows("select distinct hk_owner from rts_owner order by 1") == keys
    assert set(vault.rows("select hk_payer from link_row_payer")) <= set(keys)


def event(lsn: int, id_: int = 1, owner: str = "x", a: str | None = None, b: int | None = None) -> Event:
    """An event of one row."""
    return {"id": id_, "line": 1, "owner": owner, "a": a, "b": b, "gone": False, "at": START + timedelta(hours=lsn),
            "lsn": lsn, "seq": 1}  # fmt: skip
