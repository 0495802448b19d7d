"""The property test is worth its name: each way in which vaults commonly go wrong is built in, and is caught."""

import pytest

from tests.marks import slow
from tests.unit.dbt_macros import macro_texts
from tests.unit.embedded_vault import Vault
from tests.unit.test_vault_property import check

# What is wrong → macro, text, text of the mutant.
MUTANTS: dict[str, tuple[str, str, str]] = {
    "strict watermark": ("plan_inputs", '(" > " if steady else " >= ")', '" > "'),
    "rows at the watermark not counted": ("plan_inputs", "at_mark == mark[1] | int", "true"),
    "highest position forgotten": (
        "plan_inputs", "[highest, mark[2]] | max if mark and highest else highest", "highest"),
    "a watermark of a state that was undone": ("remembered_loads", "snapshot in ancestors", "true"),
    "snapshots of the stage that are always the same": ("plan_inputs", "mark[3] == before.states[name]", "true"),
    "no late replay": ("batch_of", "plan.inputs[source_model].late", "false"),
    "no late replay of a key that has a NULL in it": ("keys_to_find", "return([hash_key])", "return(keys)"),
    "no null guard in the comparison": ("changes_of", "is distinct from _lh_hashdiff_before", "<> _lh_hashdiff_before"),
    "hashdiff anti-join over all history": (
        "changes_of", "where not _lh_is_stored and {{ src_hashdiff }} is distinct from _lh_hashdiff_before",
        "where not _lh_is_stored and {{ src_hashdiff }} is distinct from _lh_hashdiff_before and not exists"
        " (select 1 from {{ cdc_vault.stored_rows(stage) }} as old where old.{{ keys[-1] }} = compared.{{ keys[-1] }}"
        " and old.{{ src_hashdiff }} = compared.{{ src_hashdiff }})",
    ),
    "compare with the current row only": (
        "changes_of", "from {{ cdc_vault.stored_of_keys(stored, stage, plan, of_keys) }}\n",
        "from (select * from (select *, max({{ src_seq }}) over (partition by {{ key }}) as newest"
        " from {{ cdc_vault.stored_rows(stage) }}) where {{ src_seq }} = newest) where {{ of_keys }}\n",
    ),
    "late events from the rows handed over alone": (
        "plan_inputs", '"handed": not late and', '"handed":'),
    "one version of a key per load": (
        "changes_of", "where not _lh_is_stored and",
        "where {{ src_seq }} in (select max({{ src_seq }}) from batch group by {{ key }}) and not _lh_is_stored and",
    ),
    "order of loading instead of the source's": (
        "changes_of", "order by {{ src_seq }}, _lh_is_stored", "order by _lh_is_stored"),
    "a redelivered event before the stored one": ("changes_of", "_lh_is_stored desc", "_lh_is_stored"),
    "ghost records in every load": ("missing_ghosts", "if key not in stored", ""),
    "children of a key as one": ("changes_of", "partition by {{ key }}", "partition by {{ keys[0] }}"),
    "unknown keys in hubs": ("is_known", "({{ cdc_vault.zero_key() }}, {{ cdc_vault.error_key() }})", "('')"),
    "hash without delimiter": ("hash_key", "\" || '|' || \"", '" || "'),
    "hash without escaping": ("escaped_text", 'column.type == "varchar" else', "false else"),
    "hash with NULL as the empty text": ("key_part", "'\\N'", "''"),
    "a reference that is partly NULL as a key": ("canonical_text", "if column.part_of", "if false"),
    "a link that is its table's key, from live rows alone": ("link", "of_deletes=is_key", "of_deletes=false"),
    "a link's satellite with what deletes say": ("sat", "of_deletes=is_key", "of_deletes=true"),
    "a link's satellite beside the rows of deletes alone": ("loaded_keys", "if is_own else", "if true else"),
    "a row that never changes, of deletes alone": (
        "first_sight", 'cdc_vault.is_known(input.src_pk) if of_deletes else "not is_deleted"',
        '"true" if kind == "sat" else cdc_vault.is_known(input.src_pk) if of_deletes else "not is_deleted"'),
    "hashdiff of a delete as of a row of nulls": ("hash_diff", "when {{ deleted }} then", "when false then"),
    "a key twice in one batch": ("first_sight", "where _lh_nth = 1", ""),
    "a key again in the next load": ("first_sight", "where stored.{{ src_pk }} is null", ""),
    "links from deletes": (
        "first_sight", 'cdc_vault.is_known(input.src_pk) if of_deletes else "not is_deleted"', '"true"'),
    "effectivity again in a replay": (
        "eff_sat", " and not coalesce(contains(links_stored, link), false)", ""),
    "effectivity never ends": ("eff_sat", "(values (true), (false))", "(values (true))"),
    "effectivity without the state that is stored": (
        "eff_sat", "max(link) filter (where is_active and not is_new)", "null"),
    "effectivity that a delete does not end": (
        "eff_sat", "not is_deleted as is_active", "true as is_active"),
    "effectivity by link instead of driving key": (
        "eff_sat", "lag(link_now) over (partition by driving", "lag(link_now) over (partition by link_now"),
    "a mention twice": ("rec_track_sat", "where stored.{{ src_pk }} is null", ""),
    "timeline not collapsed": (
        "timeline", "is distinct from _lh_state_before", "is not null or _lh_state_before is null"),
    "effectivity by a clock of each link": (
        "timeline", 'cdc_vault.spelled(src_payload) if src_hashdiff == "is_active" and src_payload else keys', "keys"),
    "timeline that runs backwards": (
        "timeline", "max(applied_date) over (partition by {{ clock | join(\", \") }} order by {{ src_seq }})",
        "applied_date"),
}  # fmt: skip
SEEDS = 40


def test_each_mutant_changes_its_macro() -> None:
    texts = dict(macro_texts())
    unchanged = [name for name, (changed, old, _) in MUTANTS.items() if old not in texts[changed]]
    assert not unchanged, "the macro has changed: write the mutant anew"


@pytest.mark.parametrize("name", [name if number % 10 == 4 else slow(name) for number, name in enumerate(MUTANTS)])
def test_a_mutant_is_caught(name: str) -> None:
    changed, old, new = MUTANTS[name]
    texts = dict(macro_texts())
    vault = Vault(texts | {changed: texts[changed].replace(old, new)})
    vault.hands_over = "handed over" in name
    with pytest.raises(AssertionError):
        for seed in range(SEEDS):
            check(vault, seed, keys=8, most=150)
