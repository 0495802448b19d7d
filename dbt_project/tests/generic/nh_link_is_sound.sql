{#- The source keeps its promise: what a non-historized link holds was never changed and never deleted. -#}
{% test nh_link_is_sound(model, src_pk, columns, stage) %}
select {{ src_pk }}, 'changed or deleted in the source' as problem
from {{ ref(stage) }} as stage
join {{ model }} as link using ({{ src_pk }})
where stage.is_deleted
{%- for column in columns %}
  or stage.{{ column }} is distinct from link.{{ column }}
{%- endfor %}
{% endtest %}
