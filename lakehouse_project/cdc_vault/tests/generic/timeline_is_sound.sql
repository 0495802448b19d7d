{#- Exactly one row per key is current, intervals follow one another without gap or overlap, and neighbours differ. -#}
{% test timeline_is_sound(model, src_pk, state) %}
{%- set keys = cdc_vault.spelled(src_pk) | join(", ") %}
with rows_in_order as (
  select
    {{ keys }}, valid_from, valid_to, {{ state }} as state,
    lead(valid_from) over in_order as next_valid_from,
    lag({{ state }}) over in_order as state_before,
    count_if(is_current) over (partition by {{ keys }}) as current_rows
  from {{ model }}
  window in_order as (partition by {{ keys }} order by source_seq)
)
select *
from rows_in_order
where current_rows <> 1
  or valid_to is distinct from next_valid_from
  or valid_to < valid_from
  or state = state_before
{% endtest %}
