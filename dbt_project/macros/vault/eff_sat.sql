{#-
  Effectivity satellite of a link, driven by changes and not by full loads: a driving key (the receipt) has one link at a
  time, and an event that gives it another one ends the one before. Such an event is two rows with its own source_seq: the
  link that ends (`is_active` false) and the link that begins. A delete only ends.

  Late events are handled as in `sat`; what a replay finds stored already is left out at the end.
-#}
{% macro eff_sat(src_pk, src_dfk, source_model, src_ldts="load_date", src_source="record_source", src_seq="source_seq") -%}
  {{- config(properties={"partitioning": "array['month(" ~ src_ldts ~ ")']"}) -}}
  {%- set stage = ref(source_model) -%}
  {%- if not execute -%}
    select 1 as placeholder
  {%- else -%}
  {%- set windows = load_windows([source_model], src_ldts, src_seq, ghosts=has_ghosts("sat")) -%}
  {%- set event = [src_ldts, "applied_date", src_seq, src_source] -%}
{{ load_header(windows) }}
  with batch as (
    {{ batch_of(stage, windows, source_model, [src_dfk], is_known(src_dfk)) }}
  ),
  stored as (
    select {{ src_pk }}, {{ src_dfk }}, {{ src_seq }}, is_active
    from {{ stored_rows(stage, 'true as is_active') }}
    where {{ src_dfk }} in (select {{ src_dfk }} from batch)
  ),
  events as (
    select
      {{ src_dfk }}, case when not is_deleted then {{ src_pk }} end as link_now, {{ event | join(", ") }}, true as is_new
    from batch
    union all
    select {{ src_dfk }}, max(case when is_active then {{ src_pk }} end), null, null, {{ src_seq }}, null, false
    from stored
    group by {{ src_dfk }}, {{ src_seq }}
  ),
  timeline as (
    select *, lag(link_now) over (partition by {{ src_dfk }} order by {{ src_seq }}) as link_before
    from (
      select *, row_number() over (partition by {{ src_dfk }}, {{ src_seq }} order by is_new desc) as nth
      from events
    )
    where nth = 1
  ),
  changes as (
    select case when sides.is_active then link_now else link_before end as {{ src_pk }}, timeline.{{ src_dfk }}, sides.is_active,
      {{ event | join(", ") }}
    from timeline
    cross join (values (true), (false)) as sides (is_active)
    where is_new and link_now is distinct from link_before
  )
  select
    changes.{{ src_pk }}, changes.{{ src_dfk }}, changes.is_active,
    {%- for column in event %}
    changes.{{ column }}{{ "," if not loop.last }}
    {%- endfor %}
  from changes
  left join stored on stored.{{ src_pk }} = changes.{{ src_pk }} and stored.{{ src_seq }} = changes.{{ src_seq }}
  where changes.{{ src_pk }} is not null and stored.{{ src_pk }} is null
  {%- if windows.ghost %}
  union all
  {{ ghost_row([src_pk, src_dfk, "is_active"] + event, {src_pk: zero_key(), src_dfk: zero_key(), "is_active": "false"}, src_ldts, src_source, src_seq) }}
  {%- endif %}
  {%- endif -%}
{%- endmacro %}
