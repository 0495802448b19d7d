{#-
  Each key once and in its parent hub or link, and the source keeps its promise: what `stage` published in the last
  `tested_days` of a key says what the satellite says.
-#}
{% test nh_sat_is_sound(model, src_pk, columns, stage, parent) %}
select 'key twice' as problem, {{ src_pk }} as example
from {{ model }}
group by {{ src_pk }}
having count(*) > 1
union all
select 'not in {{ parent }}', {{ src_pk }}
from {{ model }}
where record_source <> 'ghost' and {{ src_pk }} not in (select {{ src_pk }} from {{ ref(parent) }})
{%- if columns %}
union all
select distinct 'changed in the source', {{ src_pk }}
from {{ ref(stage) }} as stage
join {{ model }} as satellite using ({{ src_pk }})
where not stage.is_deleted and satellite.record_source <> 'ghost'
  and stage.load_date >= (select max(load_date) - interval '{{ var("tested_days", 7) }}' day from {{ ref(stage) }})
  and (
    {%- for column in cdc_vault.spelled(columns) %}
    {{ "or" if not loop.first }} stage.{{ column }} is distinct from satellite.{{ column }}
    {%- endfor %}
  )
{%- endif %}
{% endtest %}
