"""A `real` is hashed by all of its digits. Trino prints seven of them, as earlier releases hashed it."""

from datetime import timedelta
from typing import Any

from tests.unit.dbt_macros import macro_texts, macros
from tests.unit.embedded_vault import MODELS, START, Event, Vault, assert_nothing_changes

MAY = START + timedelta(days=50)
HASHED = "cast(cast({{ value }} as double) as varchar)"
SEVEN_DIGITS = "format('{:.6e}', {{ value }})"
ALL_DIGITS, MORE = 12345678.0, 12345679.0


def test_each_change_of_a_real_is_stored() -> None:
    """A row of 12345678 became one of 12345679, which Trino prints alike, and the vault kept the former."""
    vault = vault_of(sat_row=MODELS["sat_row"])
    vault.load([event(100, ALL_DIGITS), event(110, MORE)], MAY)
    assert said(vault) == [(100, ALL_DIGITS), (110, MORE)]


def test_tables_of_a_release_that_hashed_seven_digits_are_built_anew_once() -> None:
    """And no others: those in whose hashes no real takes part."""
    vault = vault_of(
        **{name: MODELS[name] for name in ("sat_row", "ref_row", "sts_row", "hub_row")},
        nh_sat_b=("nh_sat", {"src_pk": "hk_row", "src_payload": ["b"]}),
        hub_b=("hub", {"src_pk": "hk_b", "src_nk": "b"}),
        rts_b=("rec_track_sat", {"src_pk": "hk_b"}),
        link_of=("link", {"src_pk": "hk_of", "src_fk": ["hk_row"]}),
    )
    vault.stage |= {"hk_b": ["b"], "hk_of": ["line", {"column": "id", "type": "real"}]}
    release(vault, of_seven_digits())
    vault.load([event(100, ALL_DIGITS), event(110, MORE), event(120, MORE, 12345679)], MAY)
    assert said(vault) == [(100, ALL_DIGITS), (120, MORE)], "seven digits"
    before = {name: vault.snapshot(name) for name in vault.models}
    release(vault, macro_texts())
    vault.load([], MAY)
    assert said(vault) == [(100, ALL_DIGITS), (110, MORE), (120, MORE)]
    assert vault.rows("select b from hub_b order by 1") == [(ALL_DIGITS,), (MORE,)]
    anew = {"sat_row", "ref_row", "hub_b", "link_of", "rts_b"}
    assert {name for name in vault.models if vault.snapshot(name) != before[name]} == anew
    assert_nothing_changes(vault, MAY + timedelta(days=1))


def test_a_table_that_remembers_no_columns_is_built_anew_where_it_has_a_real() -> None:
    """As after a restore in place to a state of such a release."""
    vault = vault_of(sat_row=MODELS["sat_row"])
    release(vault, of_seven_digits())
    vault.load([event(100, ALL_DIGITS), event(110, MORE)], MAY)
    vault.db.execute("delete from properties where key like 'lakehouse.loaded.%'")
    release(vault, macro_texts())
    vault.load([], MAY)
    assert said(vault) == [(100, ALL_DIGITS), (110, MORE)]
    assert_nothing_changes(vault, MAY + timedelta(days=1))


def test_a_real_that_becomes_a_double_has_the_hashes_that_it_had() -> None:
    """Its next event was stored as a change, and the timeline showed it as one."""
    for of_earlier_release in (False, True):
        vault = vault_of(sat_row=MODELS["sat_row"], hub_b=("hub", {"src_pk": "hk_b", "src_nk": "b"}))
        vault.stage["hk_b"] = ["b"]
        release(vault, of_seven_digits() if of_earlier_release else macro_texts())
        vault.load([event(100, 0.1)], MAY)
        before = {name: vault.snapshot(name) for name in vault.models}
        release(vault, macro_texts())
        retype(vault, "double precision")
        vault.load([], MAY)
        assert ({name: vault.snapshot(name) for name in vault.models} != before) is of_earlier_release
        for name in vault.models:  # which the materialization does
            vault.db.execute(f"alter table {name} alter b type double")
        vault.load([event(110, vault.rows("select b from parsed")[0][0])], MAY + timedelta(days=1))
        assert [lsn for lsn, _ in said(vault)] == [100]
        assert vault.rows("select count(*) from hub_b") == [(1,)]


def test_a_table_of_doubles_is_not_built_anew() -> None:
    vault = vault_of(sat_row=MODELS["sat_row"], hub_b=("hub", {"src_pk": "hk_b", "src_nk": "b"}))
    vault.stage["hk_b"] = ["b"]
    release(vault, of_seven_digits())
    retype(vault, "double precision")
    vault.load([event(100, 0.1)], MAY)
    before = {name: vault.snapshot(name) for name in vault.models}
    release(vault, macro_texts())
    retype(vault, "double precision")
    for _ in range(2):
        vault.load([], MAY)
        assert {name: vault.snapshot(name) for name in vault.models} == before


def vault_of(**models: Any) -> Vault:
    """With these tables, of rows in which b is a real."""
    vault = Vault()
    vault.models = models
    retype(vault, "real")
    return vault


def retype(vault: Vault, data_type: str) -> None:
    """Another type of b, in the declaration and parsed."""
    vault.db.execute(f"alter table parsed alter b type {data_type.removesuffix(' precision')}")
    vault.retype("b", data_type)


def of_seven_digits() -> dict[str, str]:
    """The macros of an earlier release, as far as they differ in what they hash and remember."""
    texts = dict(macro_texts())
    for name, now, then in (
        ("canonical_text", HASHED, SEVEN_DIGITS),
        ("spelling_of", 'return("double")', "return(column.type)"),
        ("floats_hashed", "return(found | unique | list)", "return([])"),
        ("read_as", "if part.type and", "if false and"),
    ):
        assert now in texts[name]
        texts[name] = texts[name].replace(now, then)
    return texts


def release(vault: Vault, texts: dict[str, str]) -> None:
    """The macros of a release, by which the stage is made."""
    b = vault.context["declared_table"]().columns["b"].data_type
    vault.context = macros(texts, **vault._provided())
    vault.retype("b", b)


def event(lsn: int, b: float, id_: int = 1) -> Event:
    """An event of one row."""
    return {"id": id_, "line": 1, "owner": "x", "a": "A", "b": b, "gone": False, "at": START + timedelta(hours=lsn),
            "lsn": lsn, "seq": 1}  # fmt: skip


def said(vault: Vault) -> list[tuple[Any, ...]]:
    """LSN and value of each row of the satellite."""
    lsn = "cast(split_part(source_seq, '.', 2) as bigint)"
    return vault.rows(f"select {lsn}, b from sat_row where record_source <> 'ghost' order by 1")
