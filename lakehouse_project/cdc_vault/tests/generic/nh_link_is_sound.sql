{#-
  Each event once, every key it names in its hub (`hubs`: as in link_is_sound), and the source keeps its promise: what a
  non-historized link holds was never changed and never deleted.
-#}
{% test nh_link_is_sound(model, src_pk, columns, stage, hubs={}) %}
select 'event twice' as problem, {{ src_pk }} as example
from {{ model }}
group by {{ src_pk }}
having count(*) > 1
union all
select 'changed or deleted in the source', {{ src_pk }}
from {{ ref(stage) }} as stage
join {{ model }} as link using ({{ src_pk }})
where stage.is_deleted
{%- for column in cdc_vault.spelled(columns) %}
  or stage.{{ column }} is distinct from link.{{ column }}
{%- endfor %}
{{- cdc_vault.orphans(model, hubs) }}
{% endtest %}
