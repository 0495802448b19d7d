{#-
  Satellite: one row per change of what it says about a key, deletes included (`is_deleted`, everything else null).

  An event is stored when its hashdiff differs from the event before it in source order; several events of a key in one
  load, replays and redeliveries come out right by that alone. A late event may also bring back one that was rightly left
  out before: with A stored, B equal to it left out, and X arriving between them, B has to be stored. So where a load
  has late events, it replays the stage for the keys of its batch. Leaving out rows with an equal neighbour, the timeline
  is then the same for any split into loads and any order of arrival.
-#}
{% macro sat(src_pk, src_hashdiff, src_payload, source_model, src_ldts="load_date", src_source="record_source", src_seq="source_seq") -%}
  {{- config(properties={"partitioning": "array['month(" ~ src_ldts ~ ")']"}) -}}
  {%- set stage = ref(source_model) -%}
  {%- if not execute -%}
    select 1 as placeholder
  {%- else -%}
  {%- set windows = load_windows([source_model], src_ldts, src_seq) -%}
  {%- set columns = [src_pk, src_hashdiff] + src_payload + ["is_deleted", src_ldts, "applied_date", src_seq, src_source] -%}
{{ load_header(windows) }}
  with batch as (
    {{ batch_of(stage, windows, source_model, src_pk) }}
  ),
  timeline as (
    select {{ columns | join(", ") }}, false as is_stored
    from batch
    union all
    select
      {%- for column in columns %}
      {{ column if column in (src_pk, src_hashdiff, src_seq) else "null" }},
      {%- endfor %}
      true
    from {{ stored_rows(stage) }}
    where {{ src_pk }} in (select {{ src_pk }} from batch)
  ),
  compared as (
    select
      *,
      lag({{ src_hashdiff }}) over (partition by {{ src_pk }} order by {{ src_seq }}, is_stored desc) as hashdiff_before
    from timeline
  )
  select {{ columns | join(", ") }}
  from compared
  where not is_stored and {{ src_hashdiff }} is distinct from hashdiff_before
  {%- endif -%}
{%- endmacro %}

{#- Status tracking satellite: whether a key exists in its source, with every delete and revival. -#}
{% macro sts_sat(src_pk, source_model, src_hashdiff="hd_status", src_ldts="load_date", src_source="record_source", src_seq="source_seq") -%}
  {{ sat(src_pk, src_hashdiff, [], source_model, src_ldts, src_source, src_seq) }}
{%- endmacro %}

{#- Rows of the stage to look at: those of the load's window or, where some are late, all of their keys. -#}
{% macro batch_of(stage, windows, source_model, src_pk) -%}
  select *
    from {{ stage }}
    where
    {%- if windows and windows[source_model].late %} {{ src_pk }} in (
      select {{ src_pk }} from {{ stage }} where {{ rows_to_load(windows, source_model) }}
    )
    {%- else %} {{ rows_to_load(windows, source_model) }}
    {%- endif %}
{%- endmacro %}
