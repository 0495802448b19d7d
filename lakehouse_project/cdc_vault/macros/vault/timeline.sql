{#-
  The `_v1` view of a satellite: its collapsed timeline. Rows that say the same as the one before are left out (late
  arrivals leave such rows behind), the rest is valid from its commit time until the next one's, exactly one row per key is
  current, and that one may be a delete. Commit times can run backwards by a moment against the order of commits; then
  the later one counts, so that no interval ends before it begins. Ghost records have no timeline. A multi-active satellite or
  a reference table gives the list of its key columns as `src_pk`. Effectivity gives its driving key as `src_payload`, and
  all links of one share its clock: of two, the one that ended does not reach past the one that began.
-#}
{% macro timeline(source_model, src_pk, src_hashdiff, src_payload=[], src_ldts="load_date", src_source="record_source", src_seq="source_seq") -%}
  {%- set satellite = ref(source_model) -%}
  {%- set state = [src_hashdiff, "is_deleted"] if src_hashdiff != "is_active" else ["is_active"] -%}
  {%- set keys = cdc_vault.spelled(src_pk) -%}
  {%- set clock = cdc_vault.spelled(src_payload) if src_hashdiff == "is_active" and src_payload else keys -%}
  {%- set in_order = "(partition by " ~ keys | join(", ") ~ " order by " ~ src_seq ~ ")" -%}
  {%- set columns = keys + cdc_vault.spelled(src_payload) + state + [src_ldts, "applied_date", src_seq, src_source] %}
  select
    {%- for column in columns %}
    {{ column }},
    {%- endfor %}
    lead({{ src_seq }}) over {{ in_order }} as source_seq_to,
    valid_from,
    lead(valid_from) over {{ in_order }} as valid_to,
    lead({{ src_seq }}) over {{ in_order }} is null as is_current
  from (
    select *, max(applied_date) over (partition by {{ clock | join(", ") }} order by {{ src_seq }}) as valid_from
    from (
      select *, lag({{ src_hashdiff }}) over {{ in_order }} as _lh_state_before
      from {{ satellite }}
      where {{ src_seq }} <> {{ cdc_vault.ghost_position() }}
    )
    where {{ src_hashdiff }} is distinct from _lh_state_before
  )
{%- endmacro %}

{#- Whether a row of a `_v1` view held right after a commit: incarnation of the source and commit LSN, as numbers. -#}
{% macro valid_after(view, epoch, commit_lsn) -%}
  {%- set position = "'%010d.%019d.~'" | format(epoch, commit_lsn) -%}
  {{ view }}.source_seq < {{ position }} and ({{ view }}.source_seq_to > {{ position }} or {{ view }}.source_seq_to is null)
{%- endmacro %}
