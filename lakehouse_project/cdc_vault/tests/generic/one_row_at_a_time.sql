{#- Stretches of time of a key do not overlap, and at most one is current. -#}
{% test one_row_at_a_time(model, src_pk) %}
with rows_in_order as (
  select
    {{ src_pk }}, valid_from, valid_to,
    lead(valid_from) over (partition by {{ src_pk }} order by valid_from) as next_valid_from,
    count_if(is_current) over (partition by {{ src_pk }}) as current_rows
  from {{ model }}
)
select *
from rows_in_order
where current_rows > 1 or valid_to <= valid_from or valid_to > next_valid_from or (valid_to is null and next_valid_from is not null)
{% endtest %}
