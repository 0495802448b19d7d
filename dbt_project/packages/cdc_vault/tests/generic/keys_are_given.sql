{#-
  Counts the rows of a stage whose own key is NULL (the zero key) or declared wrong (the error key): they are in no hub
  and no satellite. Over what was published in the last `tested_days`. A warning: the policy has dealt with them.
-#}
{% test keys_are_given(model, src_pk) %}
{{ config(severity="warn", fail_calc="coalesce(sum(rows_there), 0)") }}
select {{ src_pk }}, record_source, count(*) as rows_there
from {{ model }}
where not ({{ cdc_vault.is_known(src_pk) }})
  and load_date >= (select max(load_date) - interval '{{ var("tested_days", 7) }}' day from {{ model }})
group by {{ src_pk }}, record_source
{% endtest %}
