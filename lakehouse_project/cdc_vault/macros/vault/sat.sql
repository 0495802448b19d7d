{#-
  Satellite: one row per change of what it says about a key, deletes included (`is_deleted`, everything else null).

  An event is stored when its hashdiff differs from the event before it in source order; several events of a key in one
  load, replays and redeliveries come out right by that alone. A late event may also bring back one that was rightly left
  out before: with A stored, B equal to it left out, and X arriving between them, B has to be stored. So where a load
  has late events, it replays the stage for the keys of its batch. Leaving out rows with an equal neighbour, the timeline
  is then the same for any split into loads and any order of arrival.

  `src_nk` are the columns that tell rows apart exactly as the key does (which makes no two spellings one): a replay then finds the
  rows by them, reads those files alone that may hold them, and hashes nothing else. Where one of several is NULL, it goes by the hash key.

  `is_key: false` is for a link that its row states beside its own key: a delete does not name it, and says nothing about it.
  Such a satellite has what was ever said of the link; the link's effectivity satellite says when that held.

  With other columns every hashdiff is another one, and would not compare with those that are stored. So the satellite is
  then built anew from its stage, with the new columns for its whole past. A stored event is never stored again.
-#}
{% macro sat(src_pk, src_hashdiff, src_payload, source_model, src_ldts="load_date", src_source="record_source", src_seq="source_seq", src_nk=none, is_key=true) -%}
  {{ cdc_vault.changes_of([src_pk], src_hashdiff, src_payload, source_model, src_ldts, src_source, src_seq, src_nk, of_deletes=is_key) }}
{%- endmacro %}

{#-
  Non-historized satellite: what is said about a key once and never changes, without a hashdiff. `nh_sat_is_sound` tells when
  the source breaks that promise; then it is a satellite. Whether the key is still there is what its status satellite says.
-#}
{% macro nh_sat(src_pk, src_payload, source_model, src_ldts="load_date", src_source="record_source", src_seq="source_seq") -%}
  {{ cdc_vault.first_sight(src_pk, [], source_model, src_ldts, src_source, src_seq, "sat", payload=src_payload) }}
{%- endmacro %}

{#- Status tracking satellite: whether a key exists in its source, with every delete and revival. -#}
{% macro sts_sat(src_pk, source_model, src_hashdiff="hd_status", src_ldts="load_date", src_source="record_source", src_seq="source_seq", src_nk=none) -%}
  {{ cdc_vault.changes_of([src_pk], src_hashdiff, [], source_model, src_ldts, src_source, src_seq, src_nk) }}
{%- endmacro %}

{#-
  Multi-active satellite: a key has several rows at a time, told apart by `src_cdk` (the child's own key: kind of phone,
  number of the line). Each has a timeline of its own, because a change says which one it is about. The child's key has to
  be part of the source table's key, or a delete would not carry it; a child that is a thing of its own is a hub and a link.
-#}
{% macro ma_sat(src_pk, src_cdk, src_hashdiff, src_payload, source_model, src_ldts="load_date", src_source="record_source", src_seq="source_seq", src_nk=none) -%}
  {{ cdc_vault.changes_of([src_pk] + cdc_vault.as_list(src_cdk), src_hashdiff, src_payload, source_model, src_ldts, src_source, src_seq, src_nk) }}
{%- endmacro %}

{#- Reference table: codes and what they mean, under their natural key, with history; no hub and no hash key. -#}
{% macro ref_table(src_pk, src_hashdiff, src_payload, source_model, src_ldts="load_date", src_source="record_source", src_seq="source_seq") -%}
  {{ cdc_vault.changes_of(cdc_vault.as_list(src_pk), src_hashdiff, src_payload, source_model, src_ldts, src_source, src_seq, cdc_vault.as_list(src_pk), hashed=false) }}
{%- endmacro %}

{#- What all of them are: the changes of each key's state in source order. `hashed`: the first of the keys is a hash key. -#}
{% macro changes_of(keys, src_hashdiff, src_payload, source_model, src_ldts, src_source, src_seq, src_nk=none, hashed=true, of_deletes=true) -%}
  {{- config(properties={"partitioning": "array['month(" ~ src_ldts ~ ")']"}) -}}
  {%- set stage = ref(source_model) -%}
  {%- if not execute -%}
    select 1 as placeholder
  {%- else -%}
  {%- set fixed = ["is_deleted", src_ldts, "applied_date", src_seq, src_source] -%}
  {%- set names = keys + [src_hashdiff] + src_payload + fixed -%}
  {%- set keys = cdc_vault.spelled(keys) -%}
  {%- set columns = keys + [src_hashdiff] + cdc_vault.spelled(src_payload) + fixed -%}
  {%- set plan = cdc_vault.load_plan([source_model], src_ldts, src_seq, src_source=src_source, ghosts=hashed and cdc_vault.has_ghosts("sat"), columns=names, hashed=keys[0] if hashed else src_hashdiff,
    keys={source_model: [keys[0]]} if hashed else {}) -%}
  {%- set key = keys | join(", ") -%}
  {%- set given = cdc_vault.is_known(keys[0]) if hashed else key | replace(", ", " is not null and ") ~ " is not null" -%}
  {%- set given = given if of_deletes else given ~ " and not is_deleted" -%}
  {%- set stored = cdc_vault.handed_stored(plan, [source_model], keys[0], keys + [src_hashdiff, src_seq], {source_model: [keys[0]]}) if hashed else none -%}
  {%- set of_keys -%}
    {%- set own = keys if not hashed else [keys[0]] -%}
    {{ cdc_vault.keys_in(own) }} {{ cdc_vault.loaded_keys(own, stage, plan, source_model, given, is_own=of_deletes) }}
  {%- endset -%}
{{ cdc_vault.plan_header(plan, names, {source_model: names}, stored) }}
  with batch as (
    {{ cdc_vault.batch_of(stage, plan, source_model, cdc_vault.spelled(src_nk or [keys[0]]), given, keys[0] if hashed else none) }}
  ),
  timeline as (
    select {{ columns | join(", ") }}, false as _lh_is_stored
    from batch
    union all
    select
      {%- for column in columns %}
      {{ column if column in keys + [src_hashdiff, src_seq] else "null" }},
      {%- endfor %}
      true
    from {{ cdc_vault.stored_of_keys(stored, stage, plan, of_keys) }}
  ),
  compared as (
    select *, lag({{ src_hashdiff }}) over in_order as _lh_hashdiff_before, lag({{ src_seq }}) over in_order as _lh_event_before
    from timeline
    window in_order as (partition by {{ key }} order by {{ src_seq }}, _lh_is_stored desc)
  )
  select {{ columns | join(", ") }}
  from compared
  where not _lh_is_stored and {{ src_hashdiff }} is distinct from _lh_hashdiff_before
    and {{ src_seq }} is distinct from _lh_event_before
  {{- cdc_vault.other_rows(plan, columns, [keys[0], src_hashdiff], {"is_deleted": "true"}, src_ldts, src_source, src_seq) }}
  {%- endif -%}
{%- endmacro %}

{#- Rows of the stage to look at: those of the load's window or, where some are late, all of their keys. -#}
{% macro batch_of(stage, plan, source_model, keys, given, hash_key=none) -%}
  {%- if plan and plan.inputs[source_model].late -%}
    {%- set keys = cdc_vault.keys_to_find(keys, hash_key, stage, cdc_vault.rows_to_load(plan, source_model)) -%}
  {%- endif -%}
  select *
    from {{ cdc_vault.new_rows_of(stage, plan, source_model) }}
    where {{ given }} and
    {%- if plan and plan.inputs[source_model].late %} {{ cdc_vault.keys_in(keys) }} (
      select {{ keys | join(", ") }} from {{ stage }} where {{ cdc_vault.rows_to_load(plan, source_model) }}
    )
    {%- else %} {{ cdc_vault.rows_to_load(plan, source_model) }}
    {%- endif %}
{%- endmacro %}

{#-
  By what columns the rows of a key are found: several of the source, or the hash key where a row to load has a NULL in one of
  them, which no `in` finds. Only a table without a primary key, under REPLICA IDENTITY FULL, has such rows. To look for
  one costs a late load a query more.
-#}
{% macro keys_to_find(keys, hash_key, stage, rows) %}
  {%- if keys | length > 1 and hash_key -%}
    {%- for row in run_query("select 1 from " ~ stage ~ " where " ~ rows ~ " and (" ~ keys | join(" is null or ") ~ " is null) limit 1").rows -%}
      {{ return([hash_key]) }}
    {%- endfor -%}
  {%- endif -%}
  {{ return(keys) }}
{% endmacro %}

{#-
  The keys of the batch, to find what is stored of them: those of the rows to load, which are a few of a large table. Only if
  the key is not the row's own (`is_own`), so that a delete does not name it, the rows that are replayed say more.
-#}
{% macro loaded_keys(keys, stage, plan, source_model, given, is_own=true) -%}
  (select {{ keys | join(", ") }} from {{ cdc_vault.new_rows_of(stage, plan, source_model) ~ " where " ~ given ~ " and " ~ cdc_vault.rows_to_load(plan, source_model) if is_own else "batch" }})
{%- endmacro %}

{#- Whether a row's key is one of those of a CTE: one column or several. -#}
{% macro among(keys, relation) -%}
  {{ cdc_vault.keys_in(keys) }} (select {{ keys | join(", ") }} from {{ relation }})
{%- endmacro %}

{% macro keys_in(keys) -%}
  {{ "(" ~ keys | join(", ") ~ ")" if keys | length > 1 else keys[0] }} in
{%- endmacro %}

{% macro as_list(value) %}
  {{ return([value] if value is string else value) }}
{% endmacro %}
