{#-
  Effectivity satellite of a link, driven by changes and not by full loads: a driving key (the receipt) has one link at a
  time, and an event that gives it another one ends the one before. Such an event is two rows with its own source_seq: the
  link that ends (`is_active` false) and the link that begins. A delete only ends. A link that is the key of its table drives
  itself (`src_dfk` is `src_pk`): it begins with its row and ends with it.

  Late events are handled as in `sat`; what a replay finds stored already is left out at the end. The stored rows are read
  once: an event's own are gathered beside it, so that the same scan serves the comparison and the leaving out.
-#}
{% macro eff_sat(src_pk, src_dfk, source_model, src_ldts="load_date", src_source="record_source", src_seq="source_seq", src_nk=none) -%}
  {{- config(properties={"partitioning": "array['month(" ~ src_ldts ~ ")']"}) -}}
  {%- set stage = ref(source_model) -%}
  {%- if not execute -%}
    select 1 as placeholder
  {%- else -%}
  {%- set plan = cdc_vault.load_plan([source_model], src_ldts, src_seq, src_source=src_source, ghosts=cdc_vault.has_ghosts("sat"), hashed=src_pk,
    keys={source_model: [src_pk, src_dfk] if src_dfk != src_pk else [src_pk]}, key_rows="kept.is_active") -%}
  {%- set event = [src_ldts, "applied_date", src_seq, src_source] -%}
  {%- set stored = cdc_vault.handed_stored(plan, [source_model], src_dfk, [src_dfk, src_pk, "is_active", src_seq], {source_model: [src_dfk]}) -%}
  {%- set of_keys = src_dfk ~ " in " ~ cdc_vault.loaded_keys([src_dfk], stage, plan, source_model, cdc_vault.is_known(src_dfk)) -%}
{{ cdc_vault.plan_header(plan, [src_pk, src_dfk, "is_active"] + event, stored=stored) }}
  with batch as (
    {{ cdc_vault.batch_of(stage, plan, source_model, cdc_vault.spelled(src_nk or src_dfk), cdc_vault.is_known(src_dfk), src_dfk) }}
  ),
  statements as (
    select {{ src_dfk }} as driving, {{ src_pk }} as link, not is_deleted as is_active, {{ event | join(", ") }}, true as is_new
    from batch
    union all
    select {{ src_dfk }}, {{ src_pk }}, {{ "is_active" if plan.carried or cdc_vault.is_loaded() and not plan.anew else "true" }}, null, null, {{ src_seq }}, null, false
    from {{ cdc_vault.stored_of_keys(stored, stage, plan, of_keys) }}
  ),
  timeline as (
    select *, lag(link_now) over (partition by driving order by {{ src_seq }}) as link_before
    from (
      select
        driving,
        {{ src_seq }},
        coalesce(max(link) filter (where is_active and is_new), max(link) filter (where is_active and not is_new)) as link_now,
        array_agg(link) filter (where not is_new) as links_stored,
        {%- for column in event if column != src_seq %}
        min({{ column }}) as {{ column }},
        {%- endfor %}
        bool_or(is_new) as is_new
      from statements
      group by driving, {{ src_seq }}
    )
  ),
  changes as (
    select case when sides.is_active then link_now else link_before end as link, timeline.*, sides.is_active
    from timeline
    cross join (values (true), (false)) as sides (is_active)
    where is_new and link_now is distinct from link_before
  )
  select link as {{ src_pk }}, {{ "driving as " ~ src_dfk ~ "," if src_dfk != src_pk }} is_active, {{ event | join(", ") }}
  from changes
  where link is not null and not coalesce(contains(links_stored, link), false)
  {{- cdc_vault.other_rows(plan, [src_pk, src_dfk, "is_active"] | unique | list + event, [src_pk, src_dfk], {"is_active": "false"}, src_ldts, src_source, src_seq) }}
  {%- endif -%}
{%- endmacro %}
