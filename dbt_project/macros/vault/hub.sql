{#-
  Hub: every business key once, from every table that mentions it, with the moment it was first seen. A delete names its
  key too, so a hub holds keys that are gone; a NULL key is the zero key and has no place in a hub.
-#}
{% macro hub(src_pk, src_nk, source_model, src_ldts="load_date", src_source="record_source", src_seq="source_seq") -%}
  {{ first_sight(src_pk, src_nk, source_model, src_ldts, src_source, src_seq) }}
{%- endmacro %}

{#-
  Link: every combination of keys once. A delete knows only its own key, so links come from live rows. A NULL
  reference is the zero key: the combination is kept, and says so.
-#}
{% macro link(src_pk, src_fk, source_model, src_ldts="load_date", src_source="record_source", src_seq="source_seq") -%}
  {{ first_sight(src_pk, src_fk, source_model, src_ldts, src_source, src_seq, live_only=true) }}
{%- endmacro %}

{#-
  What hub and link have in common: the first sight of each key in the batch, unless it is there already. The table is
  narrowed to the batch's keys before the two are compared: measured on 5 million rows, 10,000 new keys take 0.6 s of
  CPU and 1 MB so, a third more CPU by an outer join, and many times the memory by NOT EXISTS over the table.
-#}
{% macro first_sight(src_pk, columns, source_model, src_ldts, src_source, src_seq, live_only=false) -%}
  {%- set stages = [source_model] if source_model is string else source_model -%}
  {%- set columns = [columns] if columns is string else columns -%}
  {%- for name in stages -%}{%- do ref(name) -%}{%- endfor -%}
  {%- if not execute -%}
    select 1 as placeholder
  {%- else -%}
  {%- set windows = load_windows(stages, src_ldts, src_seq) -%}
{{ load_header(windows) }}
  with incoming as (
    {%- for name in stages_with_news(windows, stages) %}
    {{ "union all" if not loop.first }}
    select {{ src_pk }}, {{ columns | join(", ") }}, {{ src_ldts }}, applied_date, {{ src_seq }}, {{ src_source }}
    from {{ ref(name) }}
    where {{ rows_to_load(windows, name) }}
      {%- if live_only %}
      and not is_deleted
      {%- else %}
      and {{ columns | join(" is not null and ") }} is not null
      {%- endif %}
    {%- endfor %}
  ),
  batch as (
    select *
    from (
      select
        *,
        row_number() over (
          partition by {{ src_pk }} order by {{ src_ldts }}, applied_date, {{ src_seq }}, {{ src_source }}
        ) as nth
      from incoming
    )
    where nth = 1
  ),
  stored as (
    select {{ src_pk }}
    from {{ stored_rows(ref(stages[0])) }}
    where {{ src_pk }} in (select {{ src_pk }} from batch)
  )
  select
    batch.{{ src_pk }},
    {%- for column in columns %}
    batch.{{ column }},
    {%- endfor %}
    batch.{{ src_ldts }},
    batch.applied_date,
    batch.{{ src_seq }},
    batch.{{ src_source }}
  from batch
  left join stored on stored.{{ src_pk }} = batch.{{ src_pk }}
  where stored.{{ src_pk }} is null
  {%- endif -%}
{%- endmacro %}
